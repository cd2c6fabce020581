//! Contents of messages: packed, sealed, opened, written. See `visibility/content/content.py` and
//! `auth/envelope.py`.

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey, AES_256_GCM, NONCE_LEN};

use crate::handles::{ReceiptKey, HANDLE_DIGITS};
use crate::hex;

const COUNT_BYTES: usize = 8;
const TAG_BYTES: usize = 16;
const MD5_BYTES: usize = 16;
const BODY_AT: usize = 20;
const BODY_BYTES_MAX: usize = 1 << 24;
const MESSAGE: &[u8] = b"holdfast message 1";

type Packed<'py> = (Bound<'py, PyBytes>, usize, Bound<'py, PyString>);

/// Seals and opens messages. Seals only in the process that made its secret.
#[pyclass(subclass, module = "holdfast_native")]
pub struct DataKey {
    cipher: LessSafeKey,
    /// Names the key beside each message, from 1.
    #[pyo3(get)]
    number: i64,
    /// Number of messages sealed so far.
    #[pyo3(get, set)]
    count: u64,
}

impl DataKey {
    fn open_in(&self, sealed: &[u8], opened: &mut Vec<u8>) -> Option<()> {
        if sealed.len() < COUNT_BYTES + TAG_BYTES {
            return None;
        }
        let (count, rest) = sealed.split_at(COUNT_BYTES);
        opened.extend_from_slice(rest);
        let nonce = nonce_of(count.try_into().ok()?);
        let length = self
            .cipher
            .open_in_place(nonce, Aad::from(MESSAGE), opened)
            .ok()?
            .len();
        opened.truncate(length);
        Some(())
    }
}

#[pymethods]
impl DataKey {
    #[new]
    fn new(number: i64, secret: &[u8]) -> PyResult<Self> {
        let key = UnboundKey::new(&AES_256_GCM, secret)
            .map_err(|_| PyValueError::new_err("a secret has 32 bytes"))?;
        Ok(Self {
            cipher: LessSafeKey::new(key),
            number,
            count: 0,
        })
    }

    /// The sealed message, 24 bytes longer.
    fn seal<'py>(&mut self, py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        self.count += 1; // before anything can fail, so that no nonce comes twice
        let count = self.count.to_be_bytes();
        let length = COUNT_BYTES + data.len() + TAG_BYTES;
        PyBytes::new_with(py, length, |sealed| {
            let (head, rest) = sealed.split_at_mut(COUNT_BYTES);
            let (text, tag) = rest.split_at_mut(data.len());
            head.copy_from_slice(&count);
            text.copy_from_slice(data);
            let sealed_tag = self
                .cipher
                .seal_in_place_separate_tag(nonce_of(count), Aad::from(MESSAGE), text)
                .map_err(|_| PyOverflowError::new_err("too long to seal"))?;
            tag.copy_from_slice(sealed_tag.as_ref());
            Ok(())
        })
    }

    /// The original message; None if it was sealed under another key, or has changed.
    fn opened<'py>(&self, py: Python<'py>, sealed: &[u8]) -> Option<Bound<'py, PyBytes>> {
        let mut opened = Vec::with_capacity(sealed.len());
        self.open_in(sealed, &mut opened)?;
        Some(PyBytes::new(py, &opened))
    }
}

fn nonce_of(count: [u8; COUNT_BYTES]) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..COUNT_BYTES].copy_from_slice(&count);
    Nonce::assume_unique_for_key(nonce)
}

/// The stored content of a body, its size and its MD5 in digits; None for a body with characters
/// that SQS refuses, or too long for the layout.
#[pyfunction]
pub fn pack<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyString>,
    extras: &[u8],
) -> PyResult<Option<Packed<'py>>> {
    let Ok(text) = body.to_str() else {
        return Ok(None); // half of a surrogate pair
    };
    let size = text.len();
    if size >= BODY_BYTES_MAX || !is_allowed(text) {
        return Ok(None);
    }
    let md5 = md5::compute(text.as_bytes()).0;
    let data = PyBytes::new_with(py, BODY_AT + size + extras.len(), |data| {
        data[..MD5_BYTES].copy_from_slice(&md5);
        data[MD5_BYTES..BODY_AT].copy_from_slice(&(size as u32).to_be_bytes());
        data[BODY_AT..BODY_AT + size].copy_from_slice(text.as_bytes());
        data[BODY_AT + size..].copy_from_slice(extras);
        Ok(())
    })?;
    let mut digits = [0; 2 * MD5_BYTES];
    hex::write(&md5, &mut digits);
    let digits = PyString::new(py, std::str::from_utf8(&digits).unwrap_or_default());
    Ok(Some((data, size, digits)))
}

/// True for the characters of XML 1.0.
fn is_allowed(text: &str) -> bool {
    let is_plain = |byte: u8| byte >= 0x20 || matches!(byte, b'\t' | b'\n' | b'\r');
    text.bytes().all(is_plain) && (text.is_ascii() || !text.contains(['\u{fffe}', '\u{ffff}']))
}

/// A received message as an object of JSON, as msgspec writes `results.Message`, without attributes.
/// `key` is None for one that is stored unsealed. None for a content that cannot be opened, or that
/// is not of this layout.
#[pyfunction]
#[pyo3(signature = (key, data, message_id, receipt_key, sequence, delivery))]
pub fn opened_json<'py>(
    py: Python<'py>,
    key: Option<&DataKey>,
    data: &[u8],
    message_id: &str,
    receipt_key: &ReceiptKey,
    sequence: u64,
    delivery: u32,
) -> Option<Bound<'py, PyBytes>> {
    let mut opened = Vec::new();
    let content = match key {
        None => data,
        Some(key) => {
            opened.reserve(data.len());
            key.open_in(data, &mut opened)?;
            &opened
        }
    };
    let length = u32::from_be_bytes(content.get(MD5_BYTES..BODY_AT)?.try_into().ok()?) as usize;
    let body = content.get(BODY_AT..BODY_AT.checked_add(length)?)?;
    if content.len() <= BODY_AT + length {
        return None; // Extras follow
    }
    let text = std::str::from_utf8(body).ok()?;
    let mut handle = [0; HANDLE_DIGITS];
    receipt_key.write(sequence, delivery, &mut handle);
    let mut md5 = [0; 2 * MD5_BYTES];
    hex::write(&content[..MD5_BYTES], &mut md5);
    let mut json = Vec::with_capacity(length + length / 8 + 256);
    json.extend_from_slice(b"{\"MessageId\":");
    write_text(message_id, &mut json);
    json.extend_from_slice(b",\"ReceiptHandle\":\"");
    json.extend_from_slice(&handle);
    json.extend_from_slice(b"\",\"MD5OfBody\":\"");
    json.extend_from_slice(&md5);
    json.extend_from_slice(b"\",\"Body\":");
    write_text(text, &mut json);
    json.push(b'}');
    Some(PyBytes::new(py, &json))
}

/// Writes a string of JSON.
fn write_text(text: &str, json: &mut Vec<u8>) {
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
                let mut digits = [0; 2];
                hex::write(&[*byte], &mut digits);
                json.extend_from_slice(b"\\u00");
                json.extend_from_slice(&digits);
            }
        }
    }
    json.extend_from_slice(&bytes[begin..]);
    json.push(b'"');
}
