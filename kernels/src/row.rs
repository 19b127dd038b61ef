//! How kernels see a row: whole blocks, the last one padded; and what a cut keeps of it.

use bytemuck::cast_ref;

use crate::lanes::Vector;

/// Elements in a block: 8 chunks of 8 vectors of 16.
pub const BLOCK: usize = 1024;

/// Vectors whose lanes are grouped: a chunk's maxima are 16 groups of 8 elements each.
pub(crate) type Chunk = [Vector; 8];
pub(crate) type Block = [Chunk; 8];

/// Blocks of a row of `len` elements.
///
/// ```
/// assert_eq!(topmass_kernels::row::blocks(1025), 2);
/// ```
#[must_use]
pub fn blocks(len: usize) -> usize {
    len.div_ceil(BLOCK)
}

/// A row as blocks.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    full: &'a [[f32; BLOCK]],
    padded: &'a [f32; BLOCK],
}

impl<'a> Blocks<'a> {
    /// `padded` becomes the last block, where that is not full.
    #[inline(always)]
    pub(crate) fn new(row: &'a [f32], padded: &'a mut [f32; BLOCK]) -> Self {
        let (full, tail) = row.as_chunks();
        padded[..tail.len()].copy_from_slice(tail);
        padded[tail.len()..].fill(f32::NEG_INFINITY);
        Blocks { full, padded }
    }

    #[inline(always)]
    pub(crate) fn get(self, i: usize) -> &'a Block {
        cast_ref(self.full.get(i).unwrap_or(self.padded))
    }
}

/// What is kept of a row: everything above `value`, and of what equals it the indices up to
/// `last_tie`.
///
/// ```
/// use topmass_kernels::Cut;
/// let cut = Cut { value: 2.0, last_tie: 5 };
/// assert!(cut.keeps(2.0, 5) && cut.keeps(2.5, 9) && !cut.keeps(2.0, 6));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// The smallest kept logit; finite.
    pub value: f32,
    /// The last index at which that logit is kept; `u32::MAX` keeps all ties.
    pub last_tie: u32,
}

impl Cut {
    /// Keeps every unmasked token.
    pub const NONE: Cut = Cut { value: f32::MIN, last_tie: u32::MAX };

    /// Whether the logit `x` at `index` is kept.
    #[inline]
    #[must_use]
    pub fn keeps(self, x: f32, index: u32) -> bool {
        x > self.value || (x == self.value && index <= self.last_tie)
    }

    /// A block, and the threshold from which on its elements are kept. Where the last kept tie
    /// lies inside the block, the dropped ties are masked in a copy.
    #[inline(always)]
    pub(crate) fn on_block<'a>(
        self,
        block: &'a Block,
        index: usize,
        copy: &'a mut Block,
    ) -> (&'a Block, f32) {
        let start = index * BLOCK;
        let last = self.last_tie as usize;
        if start + BLOCK - 1 <= last {
            return (block, self.value);
        }
        if start > last {
            return (block, self.value.next_up());
        }
        *copy = *block;
        let flat: &mut [f32; BLOCK] = bytemuck::cast_mut(copy);
        for x in &mut flat[last - start + 1..] {
            if *x == self.value {
                *x = f32::NEG_INFINITY;
            }
        }
        (copy, self.value)
    }
}

/// A `u32` in the order of `f32` values, `-0.0` and `0.0` being one.
#[inline]
pub(crate) fn key(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    bits ^ (((bits.cast_signed() >> 31).cast_unsigned()) | 1 << 31)
}

/// The value with a [`key`].
#[inline]
pub(crate) fn unkey(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key ^ 1 << 31 } else { !key })
}

/// The value halfway between two, counted in representable values.
///
/// ```
/// use topmass_kernels::row::halfway;
/// assert_eq!(halfway(1.0, 1.0f32.next_up().next_up()), 1.0f32.next_up());
/// ```
#[must_use]
pub fn halfway(a: f32, b: f32) -> f32 {
    let (a, b) = (key(a), key(b));
    unkey(a.min(b) + a.abs_diff(b) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_values() {
        let values = [
            f32::NEG_INFINITY,
            f32::MIN,
            -1.0,
            -f32::MIN_POSITIVE,
            -1e-45,
            0.0,
            1e-45,
            1.0,
            f32::MAX,
        ];
        assert!(values.windows(2).all(|w| key(w[0]) < key(w[1])));
        assert_eq!(key(-0.0), key(0.0));
        assert!(values.iter().all(|&x| unkey(key(x)) == x));
    }

    #[test]
    #[ignore = "every f32: half a minute in release"]
    fn keys_are_in_the_order_of_every_value() {
        let (mut x, mut count) = (f32::NEG_INFINITY, 1u64);
        while x < f32::INFINITY {
            let next = x.next_up();
            // Zero comes once, as -0.
            assert!(key(x) < key(next), "{x:e} {next:e}");
            assert!(unkey(key(x)) == x);
            (x, count) = (next, count + 1);
        }
        assert_eq!(key(0.0), key(-0.0));
        println!("{count} values in order");
        assert_eq!(count, 2 * 0x7f80_0000 + 1);
    }
}
