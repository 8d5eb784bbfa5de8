// Make an element with its class and content.
export function element(tag, name, ...inside) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...inside);
  return made;
}
