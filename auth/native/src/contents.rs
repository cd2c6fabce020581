//! Contents of messages: packed, sealed, opened. See `visibility/content/content.py` and
//! `auth/envelope.py`.

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey, AES_256_GCM, NONCE_LEN};

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
    /// Seals a message of this length, which `write` writes.
    fn sealed<'py>(
        &mut self,
        py: Python<'py>,
        length: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.count += 1; // before anything can fail, so that no nonce comes twice
        let count = self.count.to_be_bytes();
        PyBytes::new_with(py, COUNT_BYTES + length + TAG_BYTES, |sealed| {
            let (head, rest) = sealed.split_at_mut(COUNT_BYTES);
            let (text, tag) = rest.split_at_mut(length);
            head.copy_from_slice(&count);
            write(text);
            let sealed_tag = self
                .cipher
                .seal_in_place_separate_tag(nonce_of(count), Aad::from(MESSAGE), text)
                .map_err(|_| PyOverflowError::new_err("too long to seal"))?;
            tag.copy_from_slice(sealed_tag.as_ref());
            Ok(())
        })
    }

    /// Appends the original message to `opened`, which is empty.
    pub fn open_in(&self, sealed: &[u8], opened: &mut Vec<u8>) -> Option<()> {
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
        self.sealed(py, data.len(), |text| text.copy_from_slice(data))
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

/// The stored contents of bodies, each with its size and its MD5 in digits; sealed, unless `key` is
/// None. None, and nothing is sealed, if one has characters that SQS refuses or is longer than
/// `size_max`, or if all are longer than `total_max`.
#[pyfunction]
#[pyo3(signature = (bodies, extras, key, size_max, total_max))]
pub fn packed<'py>(
    bodies: &Bound<'py, PyList>,
    extras: &[u8],
    key: Option<&Bound<'py, PyAny>>,
    size_max: usize,
    total_max: usize,
) -> PyResult<Option<Vec<Packed<'py>>>> {
    let mut total = 0;
    for body in bodies {
        // Else no text, or one with half of a surrogate pair.
        let Some(text) = body.cast::<PyString>().ok().and_then(|text| text.to_str().ok()) else {
            return Ok(None);
        };
        total += text.len();
        if text.len() > size_max.min(BODY_BYTES_MAX - 1) || !is_allowed(text) {
            return Ok(None);
        }
    }
    if total > total_max {
        return Ok(None);
    }
    let mut key = match key.map(|key| key.cast::<DataKey>()) {
        None => None,
        Some(Ok(key)) => Some(key.try_borrow_mut()?),
        Some(Err(_)) => return Ok(None),
    };
    let mut contents = Vec::with_capacity(bodies.len());
    for body in bodies {
        let body = body.cast::<PyString>()?;
        contents.push(packed_one(body, extras, key.as_deref_mut())?);
    }
    Ok(Some(contents))
}

fn packed_one<'py>(
    body: &Bound<'py, PyString>,
    extras: &[u8],
    key: Option<&mut DataKey>,
) -> PyResult<Packed<'py>> {
    let (py, text) = (body.py(), body.to_str()?.as_bytes());
    let md5 = md5::compute(text).0;
    let length = BODY_AT + text.len() + extras.len();
    let write = |content: &mut [u8]| {
        content[..MD5_BYTES].copy_from_slice(&md5);
        content[MD5_BYTES..BODY_AT].copy_from_slice(&(text.len() as u32).to_be_bytes());
        content[BODY_AT..BODY_AT + text.len()].copy_from_slice(text);
        content[BODY_AT + text.len()..].copy_from_slice(extras);
    };
    let data = match key {
        None => PyBytes::new_with(py, length, |content| {
            write(content);
            Ok(())
        })?,
        Some(key) => key.sealed(py, length, write)?,
    };
    let mut digits = [0; 2 * MD5_BYTES];
    hex::write(&md5, &mut digits);
    let digits = PyString::new(py, std::str::from_utf8(&digits).unwrap_or_default());
    Ok((data, text.len(), digits))
}

/// True for the characters of XML 1.0.
fn is_allowed(text: &str) -> bool {
    let is_plain = |byte: u8| byte >= 0x20 || matches!(byte, b'\t' | b'\n' | b'\r');
    text.bytes().all(is_plain) && (text.is_ascii() || !text.contains(['\u{fffe}', '\u{ffff}']))
}

/// The MD5, the body and the Extras of a stored content; None for another layout.
pub fn layout_of(content: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let length = u32::from_be_bytes(content.get(MD5_BYTES..BODY_AT)?.try_into().ok()?) as usize;
    let (body, extras) = content[BODY_AT..].split_at_checked(length)?;
    (!extras.is_empty()).then_some((&content[..MD5_BYTES], body, extras))
}
