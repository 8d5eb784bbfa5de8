// Copy to the clipboard and show the outcome.
import { toast } from "./actions.js";

export async function copy(text, done) {
  if (await copied(text)) toast(done);
  else toast("The browser blocked copying. Select the text and copy it yourself.", "failed");
}

// Browsers give pages a clipboard only over https or on this machine; the old way works everywhere.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement;
    const box = document.createElement("textarea");
    box.value = text;
    box.className = "sr-only";
    (document.querySelector("dialog[open]") ?? document.body).append(box);
    box.select();
    const isDone = document.execCommand("copy");
    box.remove();
    focused?.focus();
    return isDone;
  }
}
