// A little Markdown: fenced code, headings, list items, `code` and **bold**. Finds ranges of the text; renders nothing.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const INLINE = /(`+)([^`\n]+?)\1(?!`)|\*\*(?=\S)([^*\n]+?)\*\*/g;

/** Blocks of a text in order: {kind: "text" | "heading" | "item" | "code", start, end, language, depth}. */
export function blocks(text) {
  const found = [];
  let open = null; // the code or paragraph that is not finished
  let at = 0;
  const close = () => {
    if (open) found.push(open);
    open = null;
  };
  while (at < text.length) {
    const newline = text.indexOf("\n", at);
    const end = newline < 0 ? text.length : newline;
    const line = text.slice(at, end);
    const next = newline < 0 ? end : end + 1;
    if (open?.kind === "code") {
      if (line.trim().startsWith(open.fence) && !line.trim().slice(open.fence.length).trim()) close();
      else open.end = end;
    } else {
      const fence = FENCE.exec(line);
      const item = /^(\s*)(?:[-*+]|\d{1,3}[.)])\s/.exec(line);
      if (fence) {
        close();
        open = { kind: "code", start: next, end: next, language: fence[2], fence: fence[1] };
      } else if (!line.trim()) {
        close();
      } else if (/^#{1,6}\s/.test(line)) {
        close();
        const marks = /^#+\s+/.exec(line)?.[0].length ?? 0;
        found.push({ kind: "heading", start: at + marks, end });
      } else if (item) {
        close();
        open = { kind: "item", start: at + item[1].length, end, depth: Math.min(4, Math.floor(item[1].length / 2)) };
      } else if (open) {
        open.end = end;
      } else {
        open = { kind: "text", start: at, end };
      }
    }
    at = next;
  }
  close();
  return found;
}

/** Ranges of a block with a style: {start, end, style: "" | "code" | "bold"}; the marks themselves are in none. */
export function ranges(text, block) {
  if (block.kind === "code") return [{ start: block.start, end: block.end, style: "" }];
  const found = [];
  let at = block.start;
  const plain = (end) => end > at && found.push({ start: at, end, style: "" });
  for (const match of text.slice(block.start, block.end).matchAll(INLINE)) {
    const start = block.start + match.index;
    const marks = match[1] ? match[1].length : 2;
    plain(start);
    at = start + match[0].length;
    found.push({ start: start + marks, end: at - marks, style: match[1] ? "code" : "bold" });
  }
  plain(block.end);
  return found;
}
