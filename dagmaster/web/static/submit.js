// The form of a workflow's inputs. Form and JSON show the same values; typed text is never lost.
import { send, toastLater, warnLater } from "./actions.js";
import { element } from "./elements.js";
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
  const fields = new Map([...form.querySelectorAll("[data-input]")].map((field) => [field.dataset.input, field]));
  const optionFields = [...form.querySelectorAll("[data-option]")];
  const all = [...fields.values(), ...optionFields];
  const summary = form.querySelector("[data-summary]");
  const draft = `draft:${location.search}`;
  const undeclared = JSON.parse(document.getElementById("submit-extra").textContent);
  const extra = new Map(Object.entries(undeclared).map(([name, value]) => [name, JSON.stringify(value)]));
  let isSending = false;
  const isJson = () => form.querySelector("#tab-json").getAttribute("aria-selected") === "true";
  const isSecret = (name) => fields.get(name)?.type === "password";
  const isDefault = (name) => {
    const field = fields.get(name);
    return Boolean(field) && field.type !== "password" && field.closest("[data-default]")?.dataset.default === typed(field);
  };

  // Inputs and options by name, and problems as { element, name, message }.
  function collect() {
    const problems = [];
    let inputs = new Map();
    if (isJson()) {
      const parsed = readAll(json.value, fields, place.dataset.openInputs);
      inputs = parsed.inputs ?? inputs;
      problems.push(...parsed.problems.map((message) => ({ element: json, name: "JSON", message })));
    } else {
      for (const [name, element] of fields) note(element, name, inputs, problems);
      for (const [name, text] of extra) inputs.set(name, text);
    }
    const options = new Map();
    for (const element of optionFields) note(element, element.dataset.option, options, problems);
    return { inputs, options, problems };
  }

  function note(element, name, values, problems) {
    const { text, problem } = read(element);
    if (problem) problems.push({ element, name, message: problem });
    if (text !== null) values.set(name, text);
  }

  // The JSON and the equivalent commands follow the input.
  function update() {
    const { inputs: values, options } = collect();
    if (!isJson()) json.value = joined(values);
    const submission = {
      server: place.dataset.server, workflow, options, isSecret, needsKey: place.dataset.key,
      inputs: new Map([...values].filter(([name]) => isJson() || !isDefault(name))),
      isDeclared: (name) => fields.has(name),
      isString: (name) => fields.get(name)?.dataset.kind === "string",
    };
    show("as-cli", asCommand(submission));
    show("as-curl", asCurl(submission));
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

  // All problems at once: each at its field, and as a list that takes the focus.
  function tellAll(problems, title) {
    for (const field of [...all, json]) {
      const messages = problems.filter(({ element }) => element === field).map(({ message }) => message);
      tell(field, messages.join("; ") || null);
    }
    summary.hidden = false;
    summary.querySelector("[data-summary-title]").textContent = title;
    summary.querySelector("ul").replaceChildren(...problems.map(({ element: field, name, message }) => {
      const link = element("a", "", `${name}: ${message}`);
      link.href = `#${field?.id ?? "main"}`;
      link.addEventListener("click", (event) => {
        event.preventDefault();
        goTo(field);
      });
      return element("li", "", link);
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

  // Text that only one of them can show keeps it open.
  function select(id) {
    const unreadable = id === "tab-json" && !isJson() && [...fields.values()].find((field) => hasText(field) && read(field).text === null);
    if (unreadable) {
      tell(unreadable, read(unreadable).problem);
      unreadable.focus();
      return;
    }
    if (id === "tab-form" && isJson()) {
      const { inputs, problems } = readAll(json.value, fields, true);
      if (!inputs) {
        tell(json, problems[0]);
        json.focus();
        return;
      }
      fill(inputs);
    }
    for (const tab of form.querySelectorAll("[role=tab]")) {
      const isChosen = tab.id === id;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !isChosen;
    }
    update();
  }

  function fill(inputs) {
    extra.clear();
    for (const [name, text] of inputs) if (!fields.has(name)) extra.set(name, text.replaceAll("\n  ", "\n"));
    for (const [name, element] of fields) tell(element, write(element, inputs.get(name)?.replaceAll("\n  ", "\n")));
    tell(json, null);
  }

  async function submit() {
    const { inputs, options, problems } = collect();
    if (problems.length) return tellAll(problems, problems.length === 1 ? "Fix 1 problem" : `Fix ${problems.length} problems`);
    summary.hidden = true;
    for (const field of [...all, json]) tell(field, null);
    const button = form.querySelector("[data-send]");
    button.disabled = true;
    button.classList.add("busy");
    try {
      done(await send("/api/v1/jobs", { text: joined(bodyOf(workflow, inputs, options), "") }));
    } catch (error) {
      refused(error);
      button.disabled = false;
      button.classList.remove("busy");
    }
  }

  function done(job) {
    sessionStorage.removeItem(draft);
    toastLater(job.is_new ? `Submitted as job ${job.job_id}` : `Already submitted with this idempotency key: job ${job.job_id}`);
    warnLater(job.warnings);
    location.assign(`/ui/jobs/${job.job_id}`);
  }

  // Show errors of the server at the fields that they name.
  function refused(error) {
    const details = error.details?.length ? error.details : [{ message: error.message }];
    tellAll(details.map(placed), "The server rejected the job");
  }

  function placed({ field = "", message }) {
    const [, input, text] = /^input '(.+?)' (.*)$/s.exec(message) ?? [];
    if (fields.has(input)) return { element: isJson() ? json : fields.get(input), name: input, message: text };
    const name = field.replace(/^body\./, "").split(".")[0] || optionIn(message);
    const option = optionFields.find(({ dataset }) => dataset.option === name);
    if (option) return { element: option, name, message };
    return { element: input ? json : null, name: workflow, message };
  }

  function save() {
    const values = Object.fromEntries(all.filter(({ type }) => type !== "password").map((field) => [field.id, typed(field)]));
    const hasSecrets = [...fields.keys()].some(isSecret);
    sessionStorage.setItem(draft, JSON.stringify({ values, json: isJson() && !hasSecrets ? json.value : null }));
  }

  function restore() {
    const saved = JSON.parse(sessionStorage.getItem(draft) ?? "null");
    if (!saved) return;
    for (const [id, value] of Object.entries(saved.values)) {
      const element = all.find((field) => field.id === id);
      if (element?.type === "checkbox") element.checked = value === "true";
      else if (element) element.value = value;
    }
    form.querySelector("[data-restored]").hidden = false;
    if (saved.json === null) return;
    json.value = saved.json;
    select("tab-json");
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  form.addEventListener("input", ({ target }) => {
    if ("switch" in target.dataset) return;
    if (target === json) tell(json, readAll(json.value, fields, place.dataset.openInputs).problems[0] ?? null);
    else if (["array", "object"].includes(target.dataset.kind) || target.ariaInvalid) tell(target, read(target).problem);
    update();
    save();
  });
  form.addEventListener("change", ({ target }) => {
    if ("switch" in target.dataset) change(target);
    else if (all.includes(target) && !isSending) tell(target, read(target).problem);
  });
  // A problem that appears between press and release would move the button away from the pointer; submission shows it anyway.
  form.addEventListener("pointerdown", ({ target }) => {
    isSending = Boolean(target.closest("[data-send]"));
  });
  addEventListener("pointerup", () => {
    isSending = false;
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

function optionIn(message) {
  if (message.includes("callback")) return "callback_url";
  return message.includes("idempotency key") ? "idempotency_key" : "";
}

function hasText(field) {
  return field.validity.badInput || typed(field).trim() !== "";
}

function typed(element) {
  return element.type === "checkbox" ? String(element.checked) : element.value;
}

function change(box) {
  const known = [...box.list.options].some(({ value }) => value === box.value);
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
