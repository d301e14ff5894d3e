// Colours of classes: by their place, most urgent first. Further ones share the
// last colour.
const colours = 6;
let order = [];
export const setClasses = (classes) => (order = classes.map((c) => c.name));
export const classColour = (name) => `c${Math.min(colours - 1, Math.max(0, order.indexOf(name)))}`;
export const placeColour = (i) => `c${Math.min(colours - 1, i)}`;
