// The colours of drafters: by their order on the server, so that chat and dashboard agree.

const NUM_COLOURS = 6;
const order = [];

/** Tell which drafters the server has. */
export function setDrafters(names) {
  for (const name of names) colourOf(name);
}

/** Number of the drafter's colour. */
export function colourOf(name) {
  if (!order.includes(name)) order.push(name);
  return order.indexOf(name) % NUM_COLOURS;
}

export const colourClass = (name) => `tinted d${colourOf(name)}`;
