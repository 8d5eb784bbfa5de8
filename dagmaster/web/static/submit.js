// The form of a workflow's inputs. Form and JSON tell the same; what was typed is never lost.
import { send, toastLater } from "./actions.js";
import { asCommand, asCurl, bodyOf } from "./equivalents.js";
import { read, readAll, write } from "./fields.js";
import { joined } from "./json.js";

const root = document.querySelector("[data-submit]");
if (root) install(root);
else installChoice();

function install(place) {
  const workflow = place.dataset.submit;
  const form = place.querySelector("form");
  const json = place.querySelector("#json");
  const fields = new Map([...form.querySelectorAll("[data-input]")].map((one) => [one.dataset.input, one]));
  const options = [...form.querySelectorAll("[data-option]")];
  const all = [...fields.values(), ...options];
  const summary = form.querySelector("[data-summary]");
  const draft = `draft:${location.search}`;
  const extra = new Map(Object.entries(JSON.parse(document.getElementById("submit-extra").textContent)).map(([name, value]) => [name, JSON.stringify(value)]));
  const isJson = () => form.querySelector("#tab-json").getAttribute("aria-selected") === "true";
  const isSecret = (name) => fields.get(name)?.type === "password";
  const isDefault = (name) => {
    const field = fields.get(name);
    return Boolean(field) && field.type !== "password" && field.closest("[data-default]")?.dataset.default === typed(field);
  };

  // What is given, by name, and what is wrong: { element, name, message }.
  function collect() {
    const problems = [];
    let given = new Map();
    if (isJson()) {
      const found = readAll(json.value, fields, place.dataset.openInputs);
      given = found.given ?? given;
      problems.push(...found.problems.map((message) => ({ element: json, name: "JSON", message })));
    } else {
      for (const [name, element] of fields) note(element, name, given, problems);
      for (const [name, text] of extra) given.set(name, text);
    }
    const said = new Map();
    for (const element of options) note(element, element.dataset.option, said, problems);
    return { given, said, problems };
  }

  function note(element, name, given, problems) {
    const { text, problem } = read(element);
    if (problem) problems.push({ element, name, message: problem });
    else if (text !== null) given.set(name, text);
  }

  // The other ways to say it follow what is typed.
  function update() {
    const { given, said } = collect();
    if (!isJson()) json.value = joined(given);
    const told = new Map([...given].filter(([name]) => isJson() || !isDefault(name)));
    const isText = (name) => fields.get(name)?.dataset.kind === "string";
    const values = { server: place.dataset.server, workflow, given: told, options: said, isDeclared: (name) => fields.has(name), isText, isSecret, needsKey: place.dataset.key };
    show("as-cli", asCommand(values));
    show("as-curl", asCurl(values));
  }

  function show(id, text) {
    const box = document.getElementById(id);
    box.textContent = text;
    box.parentElement.querySelector("[data-copy]").dataset.copy = text;
  }

  function tell(element, message) {
    const line = document.getElementById(`${element.id}-problem`);
    line.hidden = !message;
    line.querySelector("span").textContent = message ?? "";
    if (message) element.setAttribute("aria-invalid", "true");
    else element.removeAttribute("aria-invalid");
  }

  // All at once, each at its field, and a list of them that takes the focus.
  function tellAll(problems, title) {
    for (const one of [...all, json]) tell(one, problems.filter(({ element }) => element === one).map(({ message }) => message).join("; ") || null);
    summary.hidden = false;
    summary.querySelector("[data-summary-title]").textContent = title;
    summary.querySelector("ul").replaceChildren(...problems.map(({ element, name, message }) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.textContent = `${name}: ${message}`;
      link.href = `#${element?.id ?? "main"}`;
      link.addEventListener("click", (event) => {
        event.preventDefault();
        goTo(element);
      });
      item.append(link);
      return item;
    }));
    summary.focus();
    summary.scrollIntoView({ block: "nearest" });
  }

  function goTo(element) {
    if (!element) return;
    if (element !== json && fields.has(element.dataset.input) && isJson()) select("tab-form");
    element.closest("details")?.setAttribute("open", "");
    element.focus();
  }

  // JSON with a mistake stays open: the form could not show it.
  function select(id) {
    if (id === "tab-form" && isJson()) {
      const { given, problems } = readAll(json.value, fields, true);
      if (!given) {
        tell(json, problems[0]);
        json.focus();
        return;
      }
      fill(given);
    }
    for (const tab of form.querySelectorAll("[role=tab]")) {
      const isChosen = tab.id === id;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !isChosen;
    }
    update();
  }

  function fill(given) {
    extra.clear();
    for (const [name, text] of given) if (!fields.has(name)) extra.set(name, text.replaceAll("\n  ", "\n"));
    for (const [name, element] of fields) tell(element, write(element, given.get(name)?.replaceAll("\n  ", "\n")));
    tell(json, null);
  }

  async function submit() {
    const { given, said, problems } = collect();
    if (problems.length) return tellAll(problems, problems.length === 1 ? "One thing is to be mended" : `${problems.length} things are to be mended`);
    summary.hidden = true;
    for (const one of [...all, json]) tell(one, null);
    const button = form.querySelector("[data-send]");
    button.disabled = true;
    button.classList.add("busy");
    try {
      done(await send("/api/v1/jobs", { text: joined(bodyOf(workflow, given, said), "") }));
    } catch (error) {
      refused(error);
      button.disabled = false;
      button.classList.remove("busy");
    }
  }

  function done(job) {
    sessionStorage.removeItem(draft);
    toastLater(job.is_new ? `Submitted as job ${job.job_id}` : `This was submitted before under the same key: job ${job.job_id}`);
    for (const one of job.warnings) toastLater(one[0].toUpperCase() + one.slice(1), "warning");
    location.assign(`/ui/jobs/${job.job_id}`);
  }

  // What the server says belongs to a field where it names one.
  function refused(error) {
    const details = error.details?.length ? error.details : [{ message: error.message }];
    tellAll(details.map((one) => placed(one)), "The server did not take it");
  }

  function placed({ field = "", message }) {
    const input = /^input '(.+?)' (.*)$/s.exec(message);
    if (input && fields.has(input[1])) return { element: isJson() ? json : fields.get(input[1]), name: input[1], message: input[2] };
    const name = field.replace(/^body\./, "").split(".")[0] || (/callback/.test(message) ? "callback_url" : /idempotency key/.test(message) ? "idempotency_key" : "");
    const option = options.find((one) => one.dataset.option === name);
    if (option) return { element: option, name, message };
    return { element: input ? json : null, name: workflow, message };
  }

  function save() {
    const values = Object.fromEntries(all.filter((one) => one.type !== "password").map((one) => [one.id, typed(one)]));
    const hasSecrets = [...fields.keys()].some(isSecret);
    sessionStorage.setItem(draft, JSON.stringify({ values, json: isJson() && !hasSecrets ? json.value : null }));
  }

  function restore() {
    const kept = JSON.parse(sessionStorage.getItem(draft) ?? "null");
    if (!kept) return;
    for (const [id, value] of Object.entries(kept.values)) {
      const element = all.find((one) => one.id === id);
      if (element?.type === "checkbox") element.checked = value === "true";
      else if (element) element.value = value;
    }
    form.querySelector("[data-restored]").hidden = false;
    if (kept.json === null) return;
    json.value = kept.json;
    select("tab-json");
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  form.addEventListener("input", ({ target }) => {
    if ("switch" in target.dataset) return;
    if (target === json) tell(json, readAll(json.value, fields, place.dataset.openInputs).problems[0] ?? null);
    else if (target.dataset.kind === "array" || target.dataset.kind === "object" || target.getAttribute("aria-invalid")) tell(target, read(target).problem);
    update();
    save();
  });
  form.addEventListener("change", ({ target }) => {
    if ("switch" in target.dataset) change(target);
    else if (all.includes(target)) tell(target, read(target).problem);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    if (event.target.role !== "tab" || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    select(event.target.id === "tab-form" ? "tab-json" : "tab-form");
    form.querySelector("[role=tab][aria-selected=true]").focus();
  });
  form.addEventListener("click", ({ target }) => {
    if (target.closest("[role=tab]")) select(target.closest("[role=tab]").id);
    if (target.closest("[data-start-over]")) sessionStorage.removeItem(draft);
  });
  restore();
  update();
  addEventListener("pageshow", update);
}

function typed(element) {
  return element.type === "checkbox" ? String(element.checked) : element.value;
}

function change(box) {
  const known = [...box.list.options].some((one) => one.value === box.value);
  if (known) location.assign(`/ui/submit?workflow=${encodeURIComponent(box.value)}`);
}

function installChoice() {
  const search = document.querySelector("[data-choose]");
  search?.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/);
    const items = [...document.querySelectorAll(".choices li")];
    for (const item of items) item.hidden = !words.every((word) => item.dataset.words.includes(word));
    document.querySelector("[data-none]").hidden = items.some((item) => !item.hidden);
  });
  search?.addEventListener("keydown", (event) => {
    if (event.key === "Enter") document.querySelector(".choices li:not([hidden]) a")?.click();
  });
}
