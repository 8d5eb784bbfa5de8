// The text of log lines as a terminal shows it.
export const MAX_LENGTH = 4000; // characters of a line
const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

export const withoutEscapes = (text) => text.replace(ANSI, "");

// Text after a carriage return overwrites the text before it.
export function overwritten(line) {
  const end = line.endsWith("\r") ? line.length - 2 : line.length;
  return line.slice(line.lastIndexOf("\r", end) + 1);
}

export function shownLine(text) {
  const plain = overwritten(withoutEscapes(text)).replace(/\r$/, "");
  const rest = plain.length - MAX_LENGTH;
  return rest > 0 ? `${plain.slice(0, MAX_LENGTH)}… (${rest} more characters)` : plain;
}

// The text of the counter beside the search field.
export function matchCount(text, total, at, earlier) {
  if (!text) return "";
  if (!total) return earlier ? "only in earlier lines" : "not found";
  if (at < 0) return total === 1 ? "1 line" : `${total} lines`;
  return `${at + 1} of ${total}`;
}
