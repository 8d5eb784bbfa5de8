// A JSON reader that reports errors with line and column, and keeps values as they were typed: JSON.parse would round
// numbers of many digits.
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
    const match = pattern.exec(this.text);
    if (match) this.at = pattern.lastIndex;
    return match ? match[0] : null;
  }

  fail(message) {
    const isAtEnd = this.at >= this.text.length;
    throw new Mistake(this.text, this.at, isAtEnd ? `Unexpected end, ${message}` : message[0].toUpperCase() + message.slice(1));
  }

  // Calls `each(name, start, end)` for each member; items of lists have no name.
  value(depth = 0, each = () => {}) {
    this.take(SPACE);
    const first = this.text[this.at];
    if (depth > DEEPEST) this.fail("nested too deeply");
    if (first === "{" || first === "[") return this.several(first === "{", depth, each);
    if (this.take(STRING) ?? this.take(NUMBER) ?? this.take(WORD)) return this.take(SPACE);
    return this.fail(first === '"' ? "string not closed, or with a line break or invalid escape" : "expected a value");
  }

  several(isObject, depth, each) {
    this.at += 1;
    const end = isObject ? "}" : "]";
    for (let isFirst = true; ; isFirst = false) {
      this.take(SPACE);
      if (isFirst && this.text[this.at] === end) break;
      let name = null;
      if (isObject) {
        const typed = this.take(STRING) ?? this.fail("expected a name in double quotes");
        name = JSON.parse(typed);
        this.take(SPACE);
        if (this.text[this.at] !== ":") this.fail("expected a colon");
        this.at += 1;
      }
      this.take(SPACE);
      const start = this.at;
      this.value(depth + 1);
      each(name, start, this.at);
      if (this.text[this.at] === end) break;
      if (this.text[this.at] !== ",") this.fail(`expected a comma or ${end}`);
      this.at += 1;
    }
    this.at += 1;
    this.take(SPACE);
  }

  whole(each) {
    this.value(0, each);
    if (this.at < this.text.length) this.fail("unexpected text after the value");
  }
}

// null, or the error and its place.
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

// The members of an object by name, each as it was typed. The text must be valid.
export function members(text) {
  const values = new Map();
  new Reader(text).whole((name, start, end) => values.set(name, text.slice(start, end).trim()));
  return values;
}

export function joined(values, indent = "  ") {
  if (!values.size) return "{}";
  const lines = [...values].map(([name, text]) => `${indent}${JSON.stringify(name)}: ${text.replaceAll("\n", `\n${indent}`)}`);
  return indent ? `{\n${lines.join(",\n")}\n}` : `{${lines.join(", ")}}`;
}
