//! Contents of messages: packed, sealed, opened. See `visibility/content/content.py` and
//! `auth/envelope.py`.

use std::borrow::Cow;

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey, AES_256_GCM, NONCE_LEN};

use crate::attributes;
use crate::hex;

const COUNT_BYTES: usize = 8;
const TAG_BYTES: usize = 16;
const MD5_BYTES: usize = 16;
const BODY_AT: usize = 20;
const BODY_BYTES_MAX: usize = 1 << 24;
const MESSAGE: &[u8] = b"holdfast message 1";
const ID_BYTES_MAX: usize = 128;
/// Of the Extras of a message without ids and attributes: three times nil.
const AFTER_TRACE_BYTES: usize = 3;
const NIL: u8 = 0xc0;

type Packed<'py> = (
    Bound<'py, PyBytes>,
    usize,
    Bound<'py, PyString>,
    Option<Bound<'py, PyString>>,
    Option<Bound<'py, PyDict>>,
);

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

/// The stored contents of messages, each with its size, the MD5s of its body and its attributes in
/// digits, and the numbers in its attributes with a meaning for the service, by name, None for none;
/// sealed, unless `key` is None. `messages` have `message_body`, `message_attributes` and, if
/// `has_ids`, `message_group_id` and `message_deduplication_id`; `extras` are those of a message
/// without attributes and ids. `bounds` are the least and the greatest number in
/// attributes with a meaning. None, and nothing is sealed, if one may be refused or is longer than
/// `size_max`, or if all are longer than `total_max`.
#[pyfunction]
#[pyo3(signature = (messages, extras, key, size_max, total_max, bounds=None, has_ids=false))]
pub fn packed<'py>(
    messages: &Bound<'py, PyAny>,
    extras: &[u8],
    key: Option<&Bound<'py, PyAny>>,
    size_max: usize,
    total_max: usize,
    bounds: Option<&Bound<'py, PyDict>>,
    has_ids: bool,
) -> PyResult<Option<Vec<Packed<'py>>>> {
    let mut key = match key.map(|key| key.cast::<DataKey>()) {
        None => None,
        Some(Ok(key)) => Some(key.try_borrow_mut()?),
        Some(Err(_)) => return Ok(None),
    };
    let mut sent = Vec::with_capacity(messages.len()?);
    for message in messages.try_iter()? {
        match Sent::of(&message?, extras, bounds, has_ids)? {
            Some(message) if message.size <= size_max => sent.push(message),
            _ => return Ok(None),
        }
    }
    if sent.iter().map(|message| message.size).sum::<usize>() > total_max {
        return Ok(None);
    }
    let contents = sent
        .iter()
        .map(|message| message.packed(key.as_deref_mut()));
    contents.collect::<PyResult<_>>().map(Some)
}

/// A message that Python would not refuse, unless it is too long.
struct Sent<'py, 'a> {
    body: Bound<'py, PyString>,
    extras: Cow<'a, [u8]>,
    size: usize,
    attributes_md5: Option<[u8; MD5_BYTES]>,
    own: Option<Bound<'py, PyDict>>,
}

impl<'py, 'a> Sent<'py, 'a> {
    fn of(
        message: &Bound<'py, PyAny>,
        extras: &'a [u8],
        bounds: Option<&Bound<'py, PyDict>>,
        has_ids: bool,
    ) -> PyResult<Option<Self>> {
        let py = message.py();
        let Ok(body) = message.getattr(intern!(py, "message_body"))?.cast_into() else {
            return Ok(None);
        };
        let body: Bound<PyString> = body;
        let size = match body.to_str() {
            Ok(text) if text.len() < BODY_BYTES_MAX && is_allowed(text) => text.len(),
            _ => return Ok(None), // with half of a surrogate pair, for example
        };
        let given = message.getattr(intern!(py, "message_attributes"))?;
        if given.is_none() && !has_ids {
            return Ok(Some(Self {
                body,
                extras: Cow::Borrowed(extras),
                size,
                attributes_md5: None,
                own: None,
            }));
        }
        let mut written = extras[..extras.len().saturating_sub(AFTER_TRACE_BYTES)].to_vec();
        for name in [
            intern!(py, "message_group_id"),
            intern!(py, "message_deduplication_id"),
        ] {
            if !has_ids {
                written.push(NIL);
            } else if pack_id(&message.getattr(name)?, &mut written).is_none() {
                return Ok(None);
            }
        }
        if given.is_none() {
            written.push(NIL);
            return Ok(Some(Self {
                body,
                extras: Cow::Owned(written),
                size,
                attributes_md5: None,
                own: None,
            }));
        }
        let packed = attributes::pack(&given, bounds, &mut written);
        Ok(packed.map(|packed| Self {
            body,
            extras: Cow::Owned(written),
            size: size + packed.size,
            attributes_md5: Some(packed.md5),
            own: packed.own,
        }))
    }

    fn packed(&self, key: Option<&mut DataKey>) -> PyResult<Packed<'py>> {
        let (py, text) = (self.body.py(), self.body.to_str()?.as_bytes());
        let md5 = md5::compute(text).0;
        let length = BODY_AT + text.len() + self.extras.len();
        let write = |content: &mut [u8]| {
            content[..MD5_BYTES].copy_from_slice(&md5);
            content[MD5_BYTES..BODY_AT].copy_from_slice(&(text.len() as u32).to_be_bytes());
            content[BODY_AT..BODY_AT + text.len()].copy_from_slice(text);
            content[BODY_AT + text.len()..].copy_from_slice(&self.extras);
        };
        let data = match key {
            None => PyBytes::new_with(py, length, |content| {
                write(content);
                Ok(())
            })?,
            Some(key) => key.sealed(py, length, write)?,
        };
        let attributes_md5 = self.attributes_md5.map(|md5| digits_of(py, &md5));
        let own = self.own.clone();
        Ok((data, self.size, digits_of(py, &md5), attributes_md5, own))
    }
}

/// Packs the id of a group or of deduplication, which may be None; None for what SQS refuses.
fn pack_id(id: &Bound<'_, PyAny>, packed: &mut Vec<u8>) -> Option<()> {
    if id.is_none() {
        packed.push(NIL);
        return Some(());
    }
    let text = id.cast::<PyString>().ok()?.to_str().ok()?;
    let is_sound = (1..=ID_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_sound.then(|| attributes::pack_text(text, packed))?
}

fn digits_of<'py>(py: Python<'py>, md5: &[u8; MD5_BYTES]) -> Bound<'py, PyString> {
    let mut digits = [0; 2 * MD5_BYTES];
    hex::write(md5, &mut digits);
    PyString::new(py, std::str::from_utf8(&digits).unwrap_or_default())
}

/// True for the characters of XML 1.0.
pub fn is_allowed(text: &str) -> bool {
    let is_plain = |byte: u8| byte >= 0x20 || matches!(byte, b'\t' | b'\n' | b'\r');
    text.bytes().all(is_plain) && (text.is_ascii() || !text.contains(['\u{fffe}', '\u{ffff}']))
}

/// The MD5, the body and the Extras of a stored content; None for another layout.
pub fn layout_of(content: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let length = u32::from_be_bytes(content.get(MD5_BYTES..BODY_AT)?.try_into().ok()?) as usize;
    let (body, extras) = content[BODY_AT..].split_at_checked(length)?;
    (!extras.is_empty()).then_some((&content[..MD5_BYTES], body, extras))
}
