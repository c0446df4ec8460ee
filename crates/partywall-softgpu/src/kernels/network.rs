//! `kernels/network.cu`: a matrix product, a row reduction, an elementwise step.

use super::{Arguments, Cost, Grid, Prepared, half_bits};
use crate::error::Code;

/// C = A * B, one tile of C for each block.
pub(super) fn product<'a>(args: &mut Arguments<'a>, grid: &Grid, tile: u64) -> Result<Prepared<'a>, Code> {
    let (a, b, c) = (args.u64()?, args.u64()?, args.u64()?);
    let (n, k) = (u64::from(args.u32()?), u64::from(args.u32()?));
    let across = n / tile;
    if across == 0 || !n.is_multiple_of(tile) {
        return Err(Code::INVALID_VALUE);
    }
    let m = grid.blocks.div_ceil(across) * tile;
    let a = args.at_address::<u16>(a, m.saturating_mul(k))?;
    let b = args.at_address::<u16>(b, k.saturating_mul(n))?;
    let c = args.at_address::<f32>(c, m.saturating_mul(n))?;
    let cost = Cost {
        bytes: (m * k + k * n) * 2 + m * n * 4,
        tensor: 2.0 * m as f64 * n as f64 * k as f64,
        ..Cost::default()
    };
    Ok(Prepared::new(cost, move || {
        let right: Vec<f32> = b.list(0..k * n).into_iter().map(from_half).collect();
        let (n, k) = (n as usize, k as usize);
        let mut left = vec![0.0_f32; ROWS * k];
        let mut sums = vec![0.0_f32; ROWS * n];
        // Tiles are whole, so rows come in fours.
        for row in (0..m).step_by(ROWS) {
            a.each(row * k as u64..(row + ROWS as u64) * k as u64, |index, half| {
                left[(index - row * k as u64) as usize] = from_half(half);
            });
            multiply(&left, &right, &mut sums, n, k);
            for (index, sum) in sums.iter().enumerate() {
                c.set(row * n as u64 + index as u64, *sum);
            }
        }
    }))
}

/// Rows that are multiplied at a time: each element of B that is read is used so often.
const ROWS: usize = 4;

fn multiply(left: &[f32], right: &[f32], sums: &mut [f32], n: usize, k: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the instructions are there.
        unsafe { multiply_avx2(left, right, sums, n, k) };
        return;
    }
    multiply_rows(left, right, sums, n, k);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_avx2(left: &[f32], right: &[f32], sums: &mut [f32], n: usize, k: usize) {
    multiply_rows(left, right, sums, n, k);
}

#[inline(always)]
fn multiply_rows(left: &[f32], right: &[f32], sums: &mut [f32], n: usize, k: usize) {
    sums.fill(0.0);
    let (first, rest) = sums.split_at_mut(n);
    let (second, rest) = rest.split_at_mut(n);
    let (third, fourth) = rest.split_at_mut(n);
    for (index, line) in right.chunks_exact(n).enumerate().take(k) {
        let factors = [left[index], left[k + index], left[2 * k + index], left[3 * k + index]];
        let rows = first.iter_mut().zip(second.iter_mut()).zip(third.iter_mut()).zip(fourth.iter_mut());
        for ((((one, two), three), four), value) in rows.zip(line) {
            *one += factors[0] * value;
            *two += factors[1] * value;
            *three += factors[2] * value;
            *four += factors[3] * value;
        }
    }
}

/// An fp16 as fp32.
fn from_half(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let (exponent, fraction) = (u32::from(bits >> 10 & 31), u32::from(bits & 1023));
    match exponent {
        0 => f32::from_bits(sign | (fraction as f32 / 16_777_216.0).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

pub(super) fn row_sums<'a>(args: &mut Arguments<'a>, grid: &Grid) -> Result<Prepared<'a>, Code> {
    let (c, n) = (args.u64()?, u64::from(args.u32()?));
    let rows = grid.blocks;
    let sums = args.words::<i32>(rows)?;
    let c = args.at_address::<f32>(c, rows.saturating_mul(n))?;
    let cost = Cost { bytes: rows * n * 4, ..Cost::default() };
    Ok(Prepared::new(cost, move || {
        for row in 0..rows {
            let mut sum = 0_i32;
            c.each(row * n..(row + 1) * n, |_, value| sum = sum.wrapping_add(value as i32));
            sums.set(row, sum);
        }
    }))
}

pub(super) fn fold<'a>(args: &mut Arguments<'a>) -> Result<Prepared<'a>, Code> {
    let (c, sums) = (args.u64()?, args.u64()?);
    let (n, count) = (u64::from(args.u32()?), args.u64()?);
    let out = args.words::<u16>(count)?;
    let rows = if n == 0 { 0 } else { count.div_ceil(n) };
    let c = args.at_address::<f32>(c, count)?;
    let sums = args.at_address::<i32>(sums, rows)?;
    let cost = Cost { bytes: count * 6, ..Cost::default() };
    Ok(Prepared::new(cost, move || {
        for row in 0..rows {
            let sum = sums.get(row);
            c.each(row * n..((row + 1) * n).min(count), |index, value| {
                let value = (value as i32).wrapping_add(sum) % 5;
                out.set(index, half_bits(if value < 0 { value + 5 } else { value } - 2));
            });
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_numbers() {
        let cases = [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x0000, 0.0),
            (0x7bff, 65_504.0),
            (0x0001, 1.0 / 16_777_216.0),
            (0x3555, 0.333_251_95),
        ];
        for (bits, expect) in cases {
            assert_eq!(from_half(bits), expect, "{bits:#x}");
        }
        assert!(from_half(0x7e00).is_nan() && from_half(0xfc00) == f32::NEG_INFINITY);
    }

    #[test]
    fn rows_are_multiplied() {
        // Four rows of two, times two rows of three.
        let left = [1.0, 2.0, 0.0, 1.0, -1.0, 0.0, 3.0, 3.0];
        let right = [1.0, 2.0, 3.0, 10.0, 20.0, 30.0];
        let mut sums = [9.0; 12];
        multiply(&left, &right, &mut sums, 3, 2);
        assert_eq!(sums, [21.0, 42.0, 63.0, 10.0, 20.0, 30.0, -1.0, -2.0, -3.0, 33.0, 66.0, 99.0]);
    }
}
