// The SQL page: Ctrl-Enter runs the query, and a click on a table inserts its name at the cursor.
const form = document.querySelector("[data-sql]");
const field = form.querySelector("textarea");

form.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  form.requestSubmit();
});

form.addEventListener("click", (event) => {
  const name = event.target.closest("[data-insert]")?.dataset.insert;
  if (!name) return;
  field.setRangeText(quoted(name), field.selectionStart, field.selectionEnd, "end");
  field.focus();
});

function quoted(name) {
  return /^[a-z_]\w*$/i.test(name) ? name : `"${name}"`;
}
