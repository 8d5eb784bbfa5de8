// Longitude arithmetic and the grid of a map.
const STEPS = [60, 30, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001];

// Into -180 to 180.
export function turned(longitude) {
  if (longitude >= -180 && longitude <= 180) return longitude;
  return ((((longitude + 180) % 360) + 360) % 360) - 180;
}

// The shift in degrees that moves a part beyond 180° next to the rest of its shape.
export const turnsTo = (west, x) => 360 * Math.ceil((west - x - 1e-9) / 360);

// The shift in degrees that moves a longitude as close to the middle of the map as possible.
export const nearestTurn = (middle, longitude) => 360 * Math.round((middle - longitude) / 360);

export function degrees(value, decimals, plus, minus) {
  const size = Math.abs(value).toFixed(decimals);
  return Number(size) === 0 ? "0°" : `${size}° ${value > 0 ? plus : minus}`;
}

// The smallest round grid interval with at most `most` lines in the span.
export const gridStep = (span, most) => STEPS.findLast((step) => span / step <= most) ?? STEPS[0];

export const decimalsOf = (step) => Math.max(0, Math.ceil(-Math.log10(step)));
