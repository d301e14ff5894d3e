// Small helpers over the DOM. Nothing here knows what is shown.

export const byId = (id) => document.getElementById(id);

// el makes an element. Attributes that are functions become listeners.
export function el(tag, attrs = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs)) {
    if (v === undefined || v === null || v === false) continue;
    if (typeof v === "function") e.addEventListener(k, v);
    else if (k === "class") e.className = v;
    else if (k === "text") e.textContent = v;
    else e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...children.filter((c) => c !== undefined && c !== null));
  return e;
}

// The setters touch the DOM only where something has changed: most of what a
// second brings is as it was.
export function setText(node, text) {
  text = String(text);
  if (node.textContent !== text) node.textContent = text;
}
export function setClass(node, cls) {
  if (node.className !== cls) node.className = cls;
}
export function setAttr(node, name, value) {
  if (value === undefined || value === null || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}
export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}
// setVar sets a custom property that the style sheet uses, a width above all.
export function setVar(node, name, value) {
  if (node.style.getPropertyValue(name) !== String(value)) node.style.setProperty(name, value);
}

// list keeps the children of parent as items say, by key: nodes stay where
// their key stays, so focus and selection survive an update.
export function list(parent, items, { key, create, update }) {
  const nodes = (parent.nodesByKey ??= new Map());
  const wanted = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const k = key(item);
    wanted.add(k);
    let node = nodes.get(k);
    if (!node) {
      node = create(item);
      nodes.set(k, node);
    }
    update?.(node, item);
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  for (const [k, node] of nodes) {
    if (wanted.has(k)) continue;
    node.remove();
    nodes.delete(k);
  }
}

// announce has a screen reader say something, once.
export function announce(text) {
  const region = byId("announcer");
  region.append(el("p", { text }));
  while (region.children.length > 5) region.firstElementChild.remove();
}
