// What a view shows of an answer, as plain values: the points it keeps, and the ticks of its axes.
"use strict";
(() => {
  // The limits of power that fronts can be narrowed to, ascending.
  function limitsOf(fronts) {
    const all = fronts.flatMap((front) => (front.operating_points ?? []).map((point) => point.power_limit_w));
    return [...new Set(all)].sort((a, b) => a - b);
  }

  // Return the part of a front at some power limits: "" for any, "default", or the highest in watts. The part can be empty.
  function narrowed(front, limit) {
    if (!limit || !front.front.length) return front;
    const fits = front.operating_points.map((point) => (limit === "default" ? point.default : point.power_limit_w <= Number(limit)));
    const { latency_s: latency, energy_j: energy, point } = front.points;
    const visible = latency.map((_, n) => n).filter((n) => fits[point[n]]);
    const order = [...visible].sort((a, b) => latency[a] - latency[b] || energy[a] - energy[b]);
    let least = Infinity;
    const best = order.filter((n) => energy[n] < least && ((least = energy[n]), true));
    return { ...front, visible, front: best };
  }

  // The point of a front that is best for an objective; null for the front as a whole.
  function bestOf(front, objective) {
    const { latency_s: latency, energy_j: energy } = front.points;
    const cost = { latency: (n) => latency[n], energy: (n) => energy[n], edp: (n) => latency[n] * energy[n] }[objective];
    if (!cost || !front.front.length) return null;
    return front.front.reduce((best, n) => (cost(n) < cost(best) ? n : best));
  }

  // Round numbers between the ends of a logarithmic axis: four at least, so that one is near every point.
  function logTicks(low, high) {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    for (const mantissas of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]]) {
      const ticks = [];
      for (let power = first; power <= last; power += 1) {
        for (const mantissa of mantissas) {
          const tick = Number((mantissa * 10 ** power).toPrecision(6));
          if (tick >= low && tick <= high) ticks.push(tick);
        }
      }
      if (ticks.length >= 4) return ticks;
    }
    const unit = 10 ** Math.floor(Math.log10((high - low) / 4));
    for (const step of [5, 2, 1, 0.5, 0.2].map((factor) => factor * unit)) {
      const ticks = [];
      for (let n = Math.ceil(low / step); n * step <= high; n += 1) ticks.push(Number((n * step).toPrecision(12)));
      if (ticks.length >= 4) return ticks;
    }
    return [low, high];
  }

  Object.assign(kernrec, { limitsOf, narrowed, bestOf, logTicks });
})();
