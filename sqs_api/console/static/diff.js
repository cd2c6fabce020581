// Differences of two texts by lines.

const LINES_MAX = 1500;

/** Pairs of "same", "gone" or "new", and the line. */
export function diff(before, after) {
  const old = before.split("\n");
  const now = after.split("\n");
  if (old.length > LINES_MAX || now.length > LINES_MAX)
    return [...old.map((line) => ["gone", line]), ...now.map((line) => ["new", line])];
  const common = commonLengths(old, now);
  const found = [];
  let one = 0;
  let other = 0;
  while (one < old.length || other < now.length) {
    if (one < old.length && other < now.length && old[one] === now[other]) {
      found.push(["same", old[one]]);
      one += 1;
      other += 1;
    } else if (other === now.length
        || (one < old.length && common[one + 1][other] >= common[one][other + 1])) {
      found.push(["gone", old[one]]);
      one += 1;
    } else {
      found.push(["new", now[other]]);
      other += 1;
    }
  }
  return found;
}

/** Lengths of the longest common subsequence of the ends from each pair of lines on. */
function commonLengths(old, now) {
  const lengths = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let one = old.length - 1; one >= 0; one -= 1)
    for (let other = now.length - 1; other >= 0; other -= 1)
      lengths[one][other] = old[one] === now[other]
        ? lengths[one + 1][other + 1] + 1
        : Math.max(lengths[one + 1][other], lengths[one][other + 1]);
  return lengths;
}
