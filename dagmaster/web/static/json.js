// Read JSON so that a mistake is found at its line and column, and so that values stay as they were typed: numbers of
// many digits would not survive JSON.parse.
const SPACE = /[ \t\n\r]*/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const WORD = /true|false|null/y;
const DEEPEST = 500;

class Mistake extends Error {
  constructor(text, at, message) {
    const before = text.slice(0, at).split("\n");
    super(`${message} at line ${before.length}, column ${before.at(-1).length + 1}`);
    this.at = at;
  }
}

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  take(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at = pattern.lastIndex;
    return found ? found[0] : null;
  }

  fail(message) {
    throw new Mistake(this.text, this.at, this.at >= this.text.length ? `The text ends, but ${message}` : message[0].toUpperCase() + message.slice(1));
  }

  // Each part is given with its name (of an object) as `each(name, start, end)`.
  value(depth = 0, each = () => {}) {
    this.take(SPACE);
    const first = this.text[this.at];
    if (depth > DEEPEST) this.fail("it is nested too deeply");
    if (first === "{" || first === "[") return this.several(first === "{", depth, each);
    if (this.take(STRING) ?? this.take(NUMBER) ?? this.take(WORD)) return this.take(SPACE);
    return this.fail(first === '"' ? "this text is not closed or has a line break or a wrong escape in it" : "a value is expected");
  }

  several(isObject, depth, each) {
    this.at += 1;
    const end = isObject ? "}" : "]";
    for (let isFirst = true; ; isFirst = false) {
      this.take(SPACE);
      if (isFirst && this.text[this.at] === end) break;
      let name = null;
      if (isObject) {
        const typed = this.take(STRING) ?? this.fail("a name in double quotes is expected");
        name = JSON.parse(typed);
        this.take(SPACE);
        if (this.text[this.at] !== ":") this.fail("a colon is expected");
        this.at += 1;
      }
      this.take(SPACE);
      const start = this.at;
      this.value(depth + 1);
      each(name, start, this.at);
      if (this.text[this.at] === end) break;
      if (this.text[this.at] !== ",") this.fail(`a comma or ${end} is expected`);
      this.at += 1;
    }
    this.at += 1;
    this.take(SPACE);
  }

  whole(each) {
    this.value(0, each);
    if (this.at < this.text.length) this.fail("nothing more is expected");
  }
}

// null, or what is wrong with it and where.
export function mistake(text) {
  try {
    new Reader(text).whole(() => {});
    return null;
  } catch (error) {
    if (error instanceof Mistake || error instanceof SyntaxError) return error.message;
    throw error;
  }
}

export function kindOf(text) {
  const first = text.trim()[0];
  if (first === "{") return "object";
  if (first === "[") return "array";
  if (first === '"') return "string";
  if (first === "t" || first === "f") return "boolean";
  return first === "n" ? "null" : "number";
}

// The members of an object by their names, each as it was typed. Only of what has no mistake.
export function members(text) {
  const found = new Map();
  new Reader(text).whole((name, start, end) => found.set(name, text.slice(start, end).trim()));
  return found;
}

export function joined(found, indent = "  ") {
  if (!found.size) return "{}";
  const lines = [...found].map(([name, text]) => `${indent}${JSON.stringify(name)}: ${text.replaceAll("\n", `\n${indent}`)}`);
  return indent ? `{\n${lines.join(",\n")}\n}` : `{${lines.join(", ")}}`;
}
