// The plot of a front: what is predicted, what was measured, what backends take, and what marks a point.
"use strict";
(() => {
  const { prefixOf, color, figure, show, logTicks } = kernrec;
  const MOST_DRAWN = 1200;  // circles in sight: each costs time in every frame
  const PLAIN = { nonselection_fill_alpha: 1, nonselection_line_alpha: 1 };

  function extent(values) {
    let low = Infinity, high = -Infinity;
    for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
    return [low, high];
  }

  // What plots side by side share: units, and ranges that hold the front of each with its surroundings.
  function scales(fronts) {
    const both = ["latency_s", "energy_j"].map((quantity) => {
      const baselines = fronts.flatMap((front) => front.baselines.map((line) => line[quantity])).filter((value) => value);
      const onFront = [...fronts.flatMap((front) => front.front.map((number) => front.points[quantity][number])), ...baselines];
      const all = fronts.flatMap((front) => extent(front.points[quantity]));
      const [low, high] = extent(onFront);
      const [scale, prefix] = prefixOf(low);
      const far = Math.max(high, Math.min(extent(all)[1], 3 * high));
      return { scale, prefix, range: [low / 1.25 / scale, far * 1.1 / scale] };
    });
    return { latency: both[0], energy: both[1] };
  }

  // The columns of Bokeh's source for some points of a front.
  function columns(front, numbers, scale, describe) {
    const { latency_s: latency, energy_j: energy } = front.points;
    const words = numbers.map(describe);
    const named = (name) => words.map((each) => each[name]);
    return {
      number: numbers,
      x: numbers.map((n) => latency[n] / scale.latency.scale),
      y: numbers.map((n) => energy[n] / scale.energy.scale),
      text: named("config"), limit: named("limit"), latency: named("latency"), energy: named("energy"),
      bottleneck: named("bottleneck"), source: words.map((each) => `${each.source} ${each.date}`),
    };
  }

  // The 90 % intervals of points as crosses: one renderer for both directions, since each costs time in every frame.
  function crosses(front, numbers, scale) {
    const part = (name, unit) => numbers.map((n) => front.points[name][n] / unit);
    const [x, left, right] = ["latency_s", "latency_low_s", "latency_high_s"].map((name) => part(name, scale.latency.scale));
    const [y, bottom, top] = ["energy_j", "energy_low_j", "energy_high_j"].map((name) => part(name, scale.energy.scale));
    return { x0: [...left, ...x], y0: [...y, ...bottom], x1: [...right, ...x], y1: [...y, ...top] };
  }

  function segments(plot, data, look) {
    const source = new Bokeh.ColumnDataSource({ data });
    return plot.segment({ field: "x0" }, { field: "y0" }, { field: "x1" }, { field: "y1" }, { source, line_width: 1.2, ...look });
  }

  // Of points that would lie on one another, the first: one in each cell of a grid over the whole plane, whose cells are
  // made so large that few enough are in sight. A move of the view needs no other points; a new zoom does.
  function thinned(numbers, x, y, view) {
    if (numbers.length <= MOST_DRAWN) return numbers;
    const [left, bottom] = [view.x.start, view.y.start].map(Math.log);
    const [width, height] = [Math.log(view.x.end) - left, Math.log(view.y.end) - bottom];
    for (let cell = 3; ; cell *= 1.4) {
      const taken = new Map();
      let inSight = 0;
      for (const n of numbers) {
        const across = (Math.log(x(n)) - left) / width, up = (Math.log(y(n)) - bottom) / height;
        const key = `${Math.floor(across * view.width / cell)},${Math.floor(up * view.height / cell)}`;
        if (taken.has(key)) continue;
        taken.set(key, n);
        if (across >= 0 && across <= 1 && up >= 0 && up <= 1) inSight += 1;
      }
      if (inSight <= MOST_DRAWN) return [...taken.values()];
    }
  }

  // The point of a baseline, or a line at its latency where what it draws is not known.
  function drawLine(plot, vendor, scale) {
    const look = { line_color: color("vendor"), line_width: 2 };
    const x = vendor.latency_s / scale.latency.scale;
    if (vendor.energy_j === null) {
      plot.add_layout(new Bokeh.Span({ location: x, dimension: "height", line_dash: [6, 4], ...look }));
      return;
    }
    const y = vendor.energy_j / scale.energy.scale;
    const [left, right] = vendor.latency_interval_s.map((value) => value / scale.latency.scale);
    const [bottom, top] = vendor.energy_interval_j.map((value) => value / scale.energy.scale);
    segments(plot, { x0: [left, x], y0: [y, bottom], x1: [right, x], y1: [y, top] }, { ...look, line_width: 1.2 });
    plot.scatter([x], [y], { size: 12, marker: "diamond", fill_color: color("vendor"), line_color: color("panel") });
  }

  // Draws the points of a front into a target. `describe(number)` has the words of a point; `onPick(number)` is called
  // for a click, `onDrawn(count)` when other points are drawn. Returns what marks a point.
  async function drawFront(target, front, scale, { describe, onPick, onDrawn }) {
    const plot = figure({
      x_axis_type: "log", y_axis_type: "log", x_range: scale.latency.range, y_range: scale.energy.range,
      x_axis_label: `latency [${scale.latency.prefix}s]`, y_axis_label: `energy [${scale.energy.prefix}J]`,
      lod_threshold: MOST_DRAWN / 2, lod_factor: 3,  // while the view moves, every third circle
    });
    const axes = [[plot.below[0], plot.x_range], [plot.left[0], plot.y_range]];
    for (const [axis] of axes) axis.formatter = new Bokeh.BasicTickFormatter({ use_scientific: false });
    // Decades alone would leave the front without a label: it rarely spans one.
    const label = () => { for (const [axis, range] of axes) axis.ticker = new Bokeh.FixedTicker({ ticks: logTicks(range.start, range.end) }); };
    label();
    const x = (n) => front.points.latency_s[n] / scale.latency.scale;
    const y = (n) => front.points.energy_j[n] / scale.energy.scale;
    const described = new Map();
    const once = (n) => described.get(n) ?? described.set(n, describe(n)).get(n);
    const onFront = new Set(front.front);
    const kinds = [[], []];  // predicted, measured; the front first, for it is always drawn
    const order = [...front.front, ...(front.visible ?? front.points.latency_s.map((_, n) => n)).filter((n) => !onFront.has(n))];
    for (const n of order) kinds[n in front.measured ? 1 : 0].push(n);
    const sources = kinds.map(() => new Bokeh.ColumnDataSource({ data: columns(front, [], scale, once) }));
    const view = { x: plot.x_range, y: plot.y_range, width: Math.max(target.clientWidth - 80, 200), height: 250 };
    let spans = null;

    // Draws what is to be seen at this zoom.
    function fill() {
      const now = [view.x, view.y].map(({ start, end }) => Math.log(end / start));
      if (spans && now.every((span, i) => Math.abs(span / spans[i] - 1) < 0.02)) return;
      spans = now;
      let count = 0;
      sources.forEach((source, kind) => {
        const numbers = thinned(kinds[kind], x, y, view);
        source.selected.indices = [];
        source.data = columns(front, numbers, scale, once);
        count += numbers.length;
      });
      onDrawn(count);
    }
    fill();

    const renderers = [
      plot.scatter({ field: "x" }, { field: "y" }, {
        source: sources[0], size: 6, fill_color: color("predicted"), fill_alpha: 0.55, line_color: null, ...PLAIN, nonselection_fill_alpha: 0.55,
      }),
    ];
    segments(plot, crosses(front, front.front, scale), { line_color: color("front"), line_alpha: 0.25 });
    plot.line(front.front.map(x), front.front.map(y), { line_color: color("front"), line_width: 1.6 });
    if (kinds[1].length) {
      renderers.push(plot.scatter({ field: "x" }, { field: "y" }, {
        source: sources[1], size: 9, marker: "square", fill_color: color("measured"), line_color: color("panel"), ...PLAIN,
      }));
    }
    for (const line of front.baselines) drawLine(plot, line, scale);
    const crossed = segments(plot, crosses(front, [], scale), { line_color: color("chosen") });
    const ringed = plot.scatter([], [], { size: 15, fill_color: null, line_color: color("chosen"), line_width: 3 });
    const marks = [crossed, ringed];
    for (const each of marks) each.visible = false;

    const tooltips = [["config", "@text"], ["power limit, clock", "@limit"], ["latency", "@latency"], ["energy", "@energy"],
      ["bottleneck", "@bottleneck"], ["source", "@source"]];
    plot.add_tools(new Bokeh.HoverTool({ tooltips, renderers, point_policy: "snap_to_data", limit: 1 }));
    plot.add_tools(new Bokeh.TapTool({ renderers }));
    for (const source of sources) {
      source.selected.properties.indices.change.connect(() => {
        const [index] = source.selected.indices;
        if (index !== undefined) onPick(source.data.number[index]);
      });
    }
    let waiting = null;
    for (const range of [plot.x_range, plot.y_range]) {
      for (const end of ["start", "end"]) {
        range.properties[end].change.connect(() => { clearTimeout(waiting); waiting = setTimeout(() => { label(); fill(); }, 150); });
      }
    }
    await show(plot, target);
    return {
      plot,
      place: (n) => ({ x: x(n), y: y(n) }),
      choose: (n) => {
        const numbers = n === null ? [] : [n];
        crossed.data_source.data = crosses(front, numbers, scale);
        ringed.data_source.data = { x: numbers.map(x), y: numbers.map(y) };
        for (const each of marks) each.visible = n !== null;
      },
    };
  }

  Object.assign(kernrec, { scales, drawFront });
})();
