// What charts share: sharp canvases, and the page's colours as canvases need them.

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

/** The present value of one of the page's colours, "--accent" for example. */
export function pageColour(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** A request's own colour: neighbouring numbers look different. */
export const requestColour = (id) => `hsl(${Math.round((id * 137.508 + 212) % 360)} 58% 54%)`;

/** The canvas's context, cleared and in CSS pixels: {context, width, height}; null while it is not shown. */
export function prepare(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  if (!width || !height) return null;
  const scale = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `value`. */
export function niceMax(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((max) => max >= value * 0.999);
}
