//! Attributes of sent messages: checked and packed as `visibility/contract/validate.py` and
//! `visibility/content/content.py` do it. What Python might refuse is left to it.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::contents::is_allowed;
use crate::extras::{md5_of_attributes, Attribute};

const ATTRIBUTES_MAX: usize = 10;
const LENGTH_MAX: usize = 256;
const DIGITS_MAX: usize = 38;
const OWN_PREFIX: &str = "holdfast";

/// A sent attribute; its texts belong to Python's objects.
struct Sent<'py> {
    name: Bound<'py, PyString>,
    data_type: Bound<'py, PyString>,
    value: Bound<'py, PyAny>,
}

pub struct Packed<'py> {
    /// As AWS counts it.
    pub size: usize,
    pub md5: [u8; 16],
    /// The numbers in the attributes that have a meaning for the service, by name.
    pub own: Option<Bound<'py, PyDict>>,
}

/// Packs the attributes as the last element of Extras. `bounds` are the least and the greatest
/// number in attributes with a meaning for the service, by name.
pub fn pack<'py>(
    given: &Bound<'py, PyAny>,
    bounds: Option<&Bound<'py, PyDict>>,
    packed: &mut Vec<u8>,
) -> Option<Packed<'py>> {
    let given = given.cast::<PyDict>().ok()?;
    if given.is_empty() || given.len() > ATTRIBUTES_MAX {
        return None;
    }
    let sent: Vec<Sent> = given
        .iter()
        .map(|(name, value)| sent_of(name, &value))
        .collect::<Option<_>>()?;
    let attributes: Vec<Attribute> = sent.iter().map(checked).collect::<Option<_>>()?;
    let mut own = None;
    for (sent, attribute) in sent.iter().zip(&attributes) {
        if is_own(attribute.name) {
            let number = own_number(sent, attribute, bounds?)?;
            let numbers = own.get_or_insert_with(|| PyDict::new(given.py()));
            numbers.set_item(&sent.name, number).ok()?;
        }
    }
    let mut size = 0;
    packed.push(0x80 | attributes.len() as u8);
    for Attribute {
        name,
        data_type,
        value,
    } in &attributes
    {
        size += name.len() + data_type.len() + value.len();
        pack_text(name, packed)?;
        packed.push(0x92);
        pack_text(data_type, packed)?;
        pack_bytes(value, packed)?;
    }
    Some(Packed {
        size,
        md5: md5_of_attributes(&attributes.iter().collect::<Vec<_>>()),
        own,
    })
}

fn sent_of<'py>(name: Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> Option<Sent<'py>> {
    let py = name.py();
    let data_type = value.getattr(intern!(py, "data_type")).ok()?;
    let text = value.getattr(intern!(py, "string_value")).ok()?;
    let binary = value.getattr(intern!(py, "binary_value")).ok()?;
    let other = [
        value.getattr(intern!(py, "string_list_values")).ok()?,
        value.getattr(intern!(py, "binary_list_values")).ok()?,
    ];
    if other.iter().any(|list| !list.is_none()) || text.is_none() == binary.is_none() {
        return None;
    }
    Some(Sent {
        name: name.cast_into().ok()?,
        data_type: data_type.cast_into().ok()?,
        value: if binary.is_none() { text } else { binary },
    })
}

fn checked<'a>(sent: &'a Sent<'_>) -> Option<Attribute<'a>> {
    let (name, data_type) = (sent.name.to_str().ok()?, sent.data_type.to_str().ok()?);
    let value = match sent.value.cast::<PyString>() {
        Ok(text) => {
            let text = text.to_str().ok()?;
            let is_sound = is_allowed(text) && (data_type != "Number" || is_plain_number(text));
            is_sound.then_some(text.as_bytes())?
        }
        Err(_) => sent.value.cast::<PyBytes>().ok()?.as_bytes(),
    };
    let attribute = Attribute {
        name,
        data_type,
        value,
    };
    let is_text = sent.value.is_instance_of::<PyString>();
    let is_sound = is_name(name) && is_type(data_type) && !value.is_empty();
    (is_sound && attribute.is_binary() != is_text).then_some(attribute)
}

fn is_own(name: &str) -> bool {
    name.get(..OWN_PREFIX.len())
        .is_some_and(|begin| begin.eq_ignore_ascii_case(OWN_PREFIX))
}

/// The number in an attribute with a meaning for the service; None for what Python has to judge.
fn own_number(
    sent: &Sent<'_>,
    attribute: &Attribute<'_>,
    bounds: &Bound<'_, PyDict>,
) -> Option<u64> {
    let (low, high): (u64, u64) = bounds.get_item(&sent.name).ok()??.extract().ok()?;
    let digits = std::str::from_utf8(attribute.value).ok()?;
    let is_number = attribute.data_type.split('.').next() == Some("Number")
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && digits.len() <= high.to_string().len();
    let number = digits.parse().ok().filter(|_| is_number)?;
    (low..=high).contains(&number).then_some(number)
}

fn is_name(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let lower = name.to_ascii_lowercase();
    let reserved = ["aws.", "amazon.", "."];
    (1..=LENGTH_MAX).contains(&name.len())
        && name.bytes().all(is_known)
        && !reserved.iter().any(|begin| lower.starts_with(begin))
        && !name.ends_with('.')
        && !name.contains("..")
}

fn is_type(data_type: &str) -> bool {
    let kinds = ["String", "Number", "Binary"];
    let label = kinds.iter().find_map(|kind| data_type.strip_prefix(kind));
    data_type.len() <= LENGTH_MAX
        && label.is_some_and(|label| match label.strip_prefix('.') {
            None => label.is_empty(),
            Some(label) => !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_graphic()),
        })
}

/// True for the common form of a number, without an exponent.
fn is_plain_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    digits.len() <= DIGITS_MAX
        && [whole, fraction]
            .iter()
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

pub fn pack_text(text: &str, packed: &mut Vec<u8>) -> Option<()> {
    match text.len() {
        length @ 0..=31 => packed.push(0xa0 | length as u8),
        length => pack_length(length, [0xd9, 0xda, 0xdb], packed)?,
    }
    packed.extend_from_slice(text.as_bytes());
    Some(())
}

fn pack_bytes(bytes: &[u8], packed: &mut Vec<u8>) -> Option<()> {
    pack_length(bytes.len(), [0xc4, 0xc5, 0xc6], packed)?;
    packed.extend_from_slice(bytes);
    Some(())
}

/// The kind of a text or of bytes, by the bytes that its length needs, and the length.
fn pack_length(length: usize, kinds: [u8; 3], packed: &mut Vec<u8>) -> Option<()> {
    if let Ok(length) = u8::try_from(length) {
        packed.extend_from_slice(&[kinds[0], length]);
    } else if let Ok(length) = u16::try_from(length) {
        packed.push(kinds[1]);
        packed.extend_from_slice(&length.to_be_bytes());
    } else {
        packed.push(kinds[2]);
        packed.extend_from_slice(&u32::try_from(length).ok()?.to_be_bytes());
    }
    Some(())
}
