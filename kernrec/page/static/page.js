// What the reader chose, what is asked for it, and where it is shown.
"use strict";
(() => {
  const { element, describe, codes, frontTable, limitsOf, narrowed, bestOf, lineText, linesTable, notes, scales, drawFront, drawRoofline, drawSweeps } = kernrec;
  const data = JSON.parse(document.getElementById("data").textContent);
  const offline = data.mode === "report";
  const byId = (id) => document.getElementById(id);
  const state = { view: "front", gpus: [...data.chosen.gpus], asked: 0 };
  const shown = [];  // of each panel: its front, its plot, what marks a point, the point that is marked

  // The answer to a question: from the server, or from the report. The key is the one that `report.py` makes.
  async function ask(path, parameters) {
    const sorted = Object.entries(parameters).sort(([a], [b]) => (a < b ? -1 : 1));
    const query = new URLSearchParams(sorted).toString();
    if (offline) {
      const answer = data.answers[`${path}?${query}`];
      if (!answer) throw new Error("this report does not have it; the commands of the neighboring points show how to ask for it");
      if (answer.error) throw new Error(answer.error);
      return answer;
    }
    const response = await fetch(`/api/${path}?${query}`);
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }

  function say(text, isError = false) {
    byId("status").textContent = text;
    byId("status").classList.toggle("error", isError);
  }

  // The problem that the form names, as parameters.
  function problem() {
    const shape = [...byId("dims").querySelectorAll("input")].map((input) => `${input.name}=${input.value.trim()}`).join(",");
    const chosen = { ...about(byId("op").value), dtype: byId("dtype").value, layout: byId("layout").value, shape };
    return { ...chosen, ...(byId("clocks").checked ? { clocks: "1" } : {}), ...inputs() };
  }

  // What kernels compute on, as a parameter; random numbers are what every answer takes if nothing is said.
  function inputs() {
    return byId("inputs").value === data.options.inputs[0] ? {} : { inputs: byId("inputs").value };
  }

  // Answers for all GPUs; those that have none are said. A question that a later one overtook gives null.
  async function forEachGpu(path, parameters) {
    const mine = ++state.asked;
    const settled = await Promise.allSettled(state.gpus.map((gpu) => ask(path, { gpu, ...parameters })));
    if (mine !== state.asked) return null;
    const failures = settled.filter((each) => each.status === "rejected").map((each) => each.reason.message);
    say([...new Set(failures)].join("; "), failures.length > 0);
    return settled.filter((each) => each.status === "fulfilled").map((each) => each.value);
  }

  async function showFronts() {
    const asked = problem();
    const fronts = await forEachGpu("front", asked);
    if (fronts === null) return;
    shown.length = 0;
    byId("explanation").hidden = true;
    const panels = fronts.map(() => element("article", { class: "panel" }));
    byId("panels").replaceChildren(...panels);
    if (!fronts.length) return;
    fillLimits(fronts);
    const kept = fronts.map((front) => narrowed(front, byId("limit").value));
    const scale = scales(kept.filter((front) => front.front.length));
    for (const [number, front] of kept.entries()) await showFront(panels[number], front, scale, asked);
    document.body.dataset.drawn = String(state.asked);
  }

  // A problem that no kernel runs: the baselines, and why.
  function showLines(panel, front) {
    panel.append(element("h2", {}, front.title), linesTable(front), notes([`No kernel of kernrec's own: ${front.no_kernel}.`, ...front.notes]));
  }

  async function showFront(panel, front, scale, asked) {
    if (!front.front.length && front.visible) { panel.append(element("h2", {}, front.title), notes([`No operating point has a power limit of at most ${byId("limit").value} W.`])); return; }
    if (!front.front.length) return showLines(panel, front);
    const entry = { front, panel, chosen: null, asked: { gpu: front.gpu, ...asked } };
    const place = element("div", { class: "plot", tabindex: "0", role: "group", "aria-label":
      `Latency against energy of ${front.problem} on ${front.title}: ${front.points.latency_s.length} points, ${front.front.length}`
      + " on the front. Arrow keys go along the front, Enter explains." });
    place.addEventListener("keydown", (event) => alongFront(event, entry));
    const box = element("div", {});
    entry.table = box;
    const measured = Object.keys(front.measured).length, points = front.points.latency_s.length;
    const legend = (kind, text) => element("span", {}, element("i", { class: kind }), text);
    const thinned = element("span", {});
    panel.append(
      element("h2", {}, front.title),
      element("p", { class: "legend" }, legend("predicted", "predicted"), legend("measured", `measured (${measured})`),
        legend("front", "front, with 90 % intervals"), front.baselines.length ? legend("vendor", front.baselines.map((line) => line.name).join(", ")) : null, thinned),
      place, box, codes(front), allPoints(entry), notes([...front.baselines.map(lineText), ...front.notes]));
    fillTable(entry);
    const drawn = await drawFront(place, front, scale, {
      describe: (n) => describe(front, n),
      onPick: (n) => pick(entry, n),
      onDrawn: (count) => { thinned.textContent = count < points ? `${count} of ${points} points drawn; the others lie behind them: zoom in` : ""; },
    });
    shown.push(Object.assign(entry, drawn));
    const best = bestOf(front, byId("objective").value);
    if (best !== null) { entry.chosen = best; entry.choose(best); fillTable(entry); }
  }

  // The power limits to choose from, as far as the shown GPUs have them; the one that is chosen stays.
  function fillLimits(fronts) {
    const select = byId("limit"), chosen = select.value;
    const limits = limitsOf(fronts).map(String);
    if (chosen && chosen !== "default" && !limits.includes(chosen)) limits.push(chosen);
    select.replaceChildren(option("", "any"), option("default"), ...limits.map((watts) => option(watts, `at most ${watts} W`)));
    select.value = chosen;
  }

  function fillTable(entry) {
    entry.table.replaceChildren(frontTable(entry.front, `Front of ${entry.front.problem}, fastest first`,
      entry.front.front, (n) => pick(entry, n, true), entry.chosen));
  }

  // The table behind the plot: made when it is opened, at most 1000 rows.
  function allPoints(entry) {
    const most = 1000;
    const details = element("details", {}, element("summary", {}, `All ${entry.front.points.latency_s.length} points as a table`));
    details.addEventListener("toggle", () => {
      if (!details.open || details.children.length > 1) return;
      const order = entry.front.points.latency_s.map((seconds, n) => [seconds, n]).sort((a, b) => a[0] - b[0]).map(([, n]) => n);
      const caption = order.length > most ? `The ${most} fastest of ${order.length} points` : "All points, fastest first";
      details.append(frontTable(entry.front, caption, order.slice(0, most), (n) => pick(entry, n, true), null));
    });
    return details;
  }

  function alongFront(event, entry) {
    const order = entry.front.front;
    const here = order.indexOf(entry.chosen);
    const steps = { ArrowRight: here + 1, ArrowLeft: here < 0 ? 0 : here - 1, Home: 0, End: order.length - 1 };
    if (event.key in steps) {
      event.preventDefault();
      const place = Math.max(0, Math.min(order.length - 1, steps[event.key]));
      mark(entry, order[place]);
      const words = describe(entry.front, entry.chosen);
      say(`Point ${place + 1} of ${order.length}: ${words.latency}, ${words.energy}, ${words.limit}, ${words.source} ${words.date}. ${words.config}`);
    } else if (event.key === "Enter" && entry.chosen !== null) {
      event.preventDefault();
      pick(entry, entry.chosen, true);
    }
  }

  function mark(entry, number) {
    for (const each of shown) {
      if (each !== entry && each.chosen !== null) { each.chosen = null; each.choose(null); fillTable(each); }
    }
    entry.chosen = number;
    entry.choose(number);
    fillTable(entry);
  }

  // Marks a point and explains it; `moves` takes the reader to the explanation.
  async function pick(entry, number, moves = false) {
    mark(entry, number);
    const words = describe(entry.front, number);
    const asked = { ...entry.asked, kernel: words.kernel, config: words.parameter, power_limit_w: String(words.point.power_limit_w) };
    if (words.point.clock_hz !== null) asked.clock_hz = String(words.point.clock_hz);
    try {
      const explained = await ask("explain", asked);
      say("");
      const place = kernrec.showExplanation(byId("explanation"), entry.front.title, explained);
      if (moves) byId("explanation").focus();
      await drawRoofline(place, explained.roofline);
      byId("explanation").dataset.drawn = words.parameter;
    } catch (error) {
      byId("explanation").hidden = true;
      say(`${words.config}: ${error.message}`, true);
    }
  }

  async function showNetworks() {
    const networks = await forEachGpu("network", { workload: byId("workload").value, ...inputs() });
    if (networks === null) return;
    const view = byId("view-network");
    view.replaceChildren();
    if (!networks.length) return;
    const place = element("div", { class: "plot", role: "img", "aria-label": `Latency against energy of ${networks[0].workload}`
      + " at several power limits; the tables have the same figures" });
    view.append(element("h2", {}, networks[0].workload), place, ...kernrec.networkTables(networks));
    await drawSweeps(place, networks);
    view.dataset.drawn = "yes";
  }

  const VIEWS = { front: showFronts, network: showNetworks };

  function open(view) {
    state.view = view;
    for (const name of Object.keys(VIEWS)) {
      byId(`view-${name}`).hidden = name !== view;
      byId(`tab-${name}`).setAttribute("aria-selected", String(name === view));
      byId(`tab-${name}`).tabIndex = name === view ? 0 : -1;
    }
    for (const own of ["problem", "best"]) document.querySelector(`fieldset.${own}`).hidden = view !== "front";
    document.querySelector("fieldset.network").hidden = view !== "network";
    refresh();
  }

  let waiting = null;
  // Shows the answers to what is chosen now; `soon` waits for the end of typing.
  function refresh(soon = false) {
    clearTimeout(waiting);
    waiting = setTimeout(() => { VIEWS[state.view]().catch((error) => say(error.message, true)); }, soon ? 250 : 0);
  }

  const option = (value, text = value) => element("option", { value }, text);

  function fillGpus() {
    byId("gpus").replaceChildren(...state.gpus.map((name) => element("li", {}, name,
      element("button", { type: "button", "aria-label": `Remove ${name}`, onclick: () => {
        if (state.gpus.length === 1) { say("at least one GPU is shown", true); return; }
        state.gpus = state.gpus.filter((other) => other !== name);
        fillGpus();
        refresh();
      } }, "×"))));
  }

  function addGpu() {
    const input = byId("add-gpu"), name = input.value.trim();
    const known = data.options.gpus.find((gpu) => [gpu.name, gpu.title].some((text) => text.toLowerCase() === name.toLowerCase()));
    if (!name) return;
    if (!known) { say(`${name} is no GPU of this list; kernrec list gpus has them all`, true); return; }
    if (!state.gpus.includes(known.name)) state.gpus.push(known.name);
    input.value = "";
    fillGpus();
    refresh();
  }

  // What a front is of, as a choice of the form: an op by its name, a kernel with a word before it.
  const KERNEL = "kernel ";
  const choiceOf = (asked) => asked.op ?? KERNEL + asked.kernel;
  const about = (choice) => (choice.startsWith(KERNEL) ? { kernel: choice.slice(KERNEL.length) } : { op: choice });
  const opOf = (choice) => data.options.ops.find((op) => op.name === choice) ?? data.options.kernels.find((kernel) => KERNEL + kernel.name === choice);

  function fillDims(shape) {
    const given = new Map(shape.split(",").map((part) => part.split("=")));
    const dims = offline ? [...given.keys()].map((name) => ({ name, meaning: name })) : opOf(byId("op").value).dims;
    byId("dims").replaceChildren(...dims.map((dim) => {
      const value = given.get(dim.name) ?? (typeof dim.default === "string" ? given.get(dim.default) : dim.default) ?? 1;
      return element("label", { title: dim.meaning }, dim.name,
        element("input", { name: dim.name, value, inputmode: "numeric", "aria-label": dim.meaning || dim.name, readonly: offline }));
    }));
  }

  // The problems that can be taken as they are: the layers of a network, or those of the report.
  function presets() { return offline ? data.options.problems : opOf(byId("op").value).layers; }

  function fillProblem(chosen) {
    const fill = (id, values, value) => {
      byId(id).replaceChildren(...values.map((each) => option(each)));
      byId(id).value = value;
    };
    const choice = choiceOf(chosen);
    const op = offline ? { dtypes: [chosen.dtype], layouts: [chosen.layout] } : opOf(choice);
    fill("op", offline ? [choice] : [...data.options.ops.map((each) => each.name), ...data.options.kernels.map((each) => KERNEL + each.name)], choice);
    fill("dtype", op.dtypes, chosen.dtype);
    fill("layout", op.layouts, chosen.layout);
    const known = presets();
    const place = known.findIndex((each) => each.shape === chosen.shape && choiceOf(each) === choice && (!offline || each.dtype === chosen.dtype));
    byId("preset").replaceChildren(...(place < 0 ? [option("-1", "your own")] : []), ...known.map((each, n) => option(String(n), each.name)));
    byId("preset").value = String(place);
    fillDims(chosen.shape);
  }

  function start() {
    const { options, chosen } = data;
    byId("known-gpus").append(...options.gpus.map((gpu) => option(gpu.name, gpu.title)));
    byId("workload").append(...options.workloads.map((name) => option(name)));
    if (chosen.workload) byId("workload").value = chosen.workload;
    byId("inputs").append(...options.inputs.map((name) => option(name)));
    byId("inputs").value = chosen.inputs ?? options.inputs[0];
    byId("inputs").disabled = offline;
    byId("clocks").checked = Boolean(chosen.clocks);
    byId("clocks").disabled = offline;
    if (offline) {
      byId("about").textContent = `Report of kernrec ${data.version}, ${data.made_at.slice(0, 10)}; it needs no network.`;
      if (options.problems.length) fillProblem(options.problems[0]);
      else byId("tab-front").hidden = true;
      byId("tab-network").hidden = !options.workloads.length;
      for (const id of ["op", "dtype", "layout"]) byId(id).disabled = true;
    } else fillProblem(chosen.problem);
    fillGpus();

    byId("choose").addEventListener("submit", (event) => event.preventDefault());
    byId("add-gpu").addEventListener("change", addGpu);
    byId("add-gpu").addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); addGpu(); } });
    byId("op").addEventListener("change", () => { const [first] = opOf(byId("op").value).layers; fillProblem(first); refresh(); });
    byId("preset").addEventListener("change", () => { fillProblem(presets()[Number(byId("preset").value)] ?? problem()); refresh(); });
    for (const id of ["dtype", "layout", "clocks", "workload", "inputs", "objective", "limit"]) byId(id).addEventListener("change", () => refresh());
    byId("dims").addEventListener("input", () => refresh(true));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => refresh());
    const tabs = [...document.querySelectorAll("[role=tab]")];
    for (const tab of tabs) {
      tab.addEventListener("click", () => open(tab.id.slice(4)));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const usable = tabs.filter((each) => !each.hidden);
        const next = usable[(usable.indexOf(tab) + step + usable.length) % usable.length];
        next.focus();
        open(next.id.slice(4));
      });
    }
    byId("footer").textContent = "Predicted values come from static analysis or a trained model, measured ones from a database; each point shows its source.";
    const first = offline && !options.problems.length ? "network" : data.chosen.view ?? "front";
    open(first);
  }

  kernrec.shown = shown;
  start();
})();
