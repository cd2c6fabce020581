//! Lower-case hexadecimal digits.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Writes the digits of `bytes` into `digits`, which is twice as long.
pub fn write(bytes: &[u8], digits: &mut [u8]) {
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[(byte >> 4) as usize];
        pair[1] = DIGITS[(byte & 15) as usize];
    }
}

/// The bytes that lower-case digits stand for; None for anything else.
pub fn read(digits: &[u8], bytes: &mut [u8]) -> Option<()> {
    if digits.len() != 2 * bytes.len() {
        return None;
    }
    for (pair, byte) in digits.chunks_exact(2).zip(bytes) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(())
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

/// True if two byte strings are the same, in a time that depends on their lengths only.
pub fn is_same(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let differences = left.iter().zip(right).fold(0, |seen, (one, other)| {
        seen | std::hint::black_box(one ^ other)
    });
    std::hint::black_box(differences) == 0
}
