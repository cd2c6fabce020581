//! Strings of JSON, as msgspec writes them.

use crate::hex;

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn write_text(text: &str, json: &mut Vec<u8>) {
    json.push(b'"');
    let bytes = text.as_bytes();
    let mut begin = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if *byte >= 0x20 && *byte != b'"' && *byte != b'\\' {
            continue;
        }
        json.extend_from_slice(&bytes[begin..at]);
        begin = at + 1;
        match byte {
            b'"' => json.extend_from_slice(b"\\\""),
            b'\\' => json.extend_from_slice(b"\\\\"),
            b'\n' => json.extend_from_slice(b"\\n"),
            b'\r' => json.extend_from_slice(b"\\r"),
            b'\t' => json.extend_from_slice(b"\\t"),
            0x08 => json.extend_from_slice(b"\\b"),
            0x0c => json.extend_from_slice(b"\\f"),
            _ => {
                json.extend_from_slice(b"\\u00");
                write_digits(&[*byte], json);
            }
        }
    }
    json.extend_from_slice(&bytes[begin..]);
    json.push(b'"');
}

pub fn write_base64(bytes: &[u8], json: &mut Vec<u8>) {
    json.push(b'"');
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = BASE64[(bits >> (18 - 6 * at)) as usize & 63];
            json.push(if at <= chunk.len() { digit } else { b'=' });
        }
    }
    json.push(b'"');
}

/// Lower-case hexadecimal digits, without quotes.
pub fn write_digits(bytes: &[u8], json: &mut Vec<u8>) {
    let begin = json.len();
    json.resize(begin + 2 * bytes.len(), 0);
    hex::write(bytes, &mut json[begin..]);
}
