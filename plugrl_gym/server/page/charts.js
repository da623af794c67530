// Line charts by uPlot, in the page's colours, as wide as their place.

/* global uPlot */

// Between two marks on an axis of seconds.
const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800]
  .concat([1, 2, 4, 6, 12, 24, 48, 96, 192, 384].map((hours) => hours * 3600));
// A rate is shown from 0 up to a little above its highest.
const FROM_ZERO = { min: { soft: 0, mode: 1, pad: 0 }, max: { soft: 1, mode: 1, pad: 0.1 } };

const DARK = matchMedia("(prefers-color-scheme: dark)");

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axis(label, format) {
  const line = { stroke: colour("--line"), width: 1 };
  return {
    label,
    labelSize: 22,
    size: 32,
    gap: 4,
    font: "13px system-ui, sans-serif",
    labelFont: "13px system-ui, sans-serif",
    stroke: colour("--quiet"),
    grid: line,
    ticks: line,
    values: (_, splits) => splits.map((value) => (value === null ? "" : format(value))),
  };
}

export class Chart {
  /**
   * @param {Element} place Where the chart goes; its size is the chart's.
   * @param {{x: string, y: string, formatX: Function, formatY: Function, timed: boolean}} about
   *   Labels of the axes with their units, how to write their numbers, and whether it is a rate,
   *   at least 0, over seconds.
   */
  constructor(place, about) {
    this.place = place;
    this.about = about;
    this.data = [[], []];
    this.plot = null;
    DARK.addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.fit()).observe(place);
  }

  /** Show a curve; `ys` may hold null where nothing is known. */
  show(xs, ys) {
    this.data = [xs, ys];
    if (this.plot === null) this.draw();
    else this.plot.setData(this.data);
  }

  size() {
    return { width: Math.max(this.place.clientWidth, 50), height: this.place.clientHeight };
  }

  fit() {
    if (this.plot !== null) this.plot.setSize(this.size());
  }

  draw() {
    if (this.plot !== null) this.plot.destroy();
    const { x, y, formatX, formatY, timed } = this.about;
    const below = axis(x, formatX);
    const options = {
      ...this.size(),
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false }, y: timed ? { range: FROM_ZERO } : {} },
      axes: [timed ? { ...below, incrs: SPANS } : below, { ...axis(y, formatY), size: 56 }],
      series: [{}, { stroke: colour("--curve"), width: 2, points: { show: false } }],
    };
    this.plot = new uPlot(options, this.data, this.place);
  }
}
