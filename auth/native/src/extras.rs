//! The stored part of a message beside its body, see `Extras` in `visibility/content/content.py`.

/// An attribute of a message.
pub struct Attribute<'a> {
    pub name: &'a str,
    pub data_type: &'a str,
    pub value: &'a [u8],
}

impl Attribute<'_> {
    pub fn is_binary(&self) -> bool {
        self.data_type.starts_with("Binary")
    }
}

pub struct Extras<'a> {
    pub sender: &'a str,
    pub trace_header: Option<&'a str>,
    pub group_id: Option<&'a str>,
    pub deduplication_id: Option<&'a str>,
    /// In the order in which they are stored. No name comes twice.
    pub attributes: Vec<Attribute<'a>>,
}

impl<'a> Extras<'a> {
    /// None for what this version does not write.
    pub fn read(packed: &'a [u8]) -> Option<Self> {
        let mut reader = Reader { rest: packed };
        if reader.byte()? != 0x95 {
            return None; // an array of these five
        }
        let extras = Self {
            sender: reader.text()?,
            trace_header: reader.text_or_nil()?,
            group_id: reader.text_or_nil()?,
            deduplication_id: reader.text_or_nil()?,
            attributes: reader.attributes()?,
        };
        reader.rest.is_empty().then_some(extras)
    }
}

/// Reads msgpack.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    /// A length in so many bytes.
    fn length(&mut self, bytes: usize) -> Option<usize> {
        let digits = self.take(bytes)?.iter();
        Some(digits.fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = match self.byte()? {
            kind @ 0xa0..=0xbf => usize::from(kind & 0x1f),
            0xd9 => self.length(1)?,
            0xda => self.length(2)?,
            0xdb => self.length(4)?,
            _ => return None,
        };
        std::str::from_utf8(self.take(length)?).ok()
    }

    fn text_or_nil(&mut self) -> Option<Option<&'a str>> {
        if self.rest.first() == Some(&0xc0) {
            self.byte()?;
            return Some(None);
        }
        self.text().map(Some)
    }

    fn value(&mut self) -> Option<&'a [u8]> {
        let length = match self.byte()? {
            0xc4 => self.length(1)?,
            0xc5 => self.length(2)?,
            0xc6 => self.length(4)?,
            _ => return None,
        };
        self.take(length)
    }

    fn attributes(&mut self) -> Option<Vec<Attribute<'a>>> {
        let count = match self.byte()? {
            0xc0 => 0,
            kind @ 0x80..=0x8f => usize::from(kind & 0x0f),
            _ => return None, // SQS allows ten
        };
        let mut attributes: Vec<Attribute> = Vec::with_capacity(count);
        for _ in 0..count {
            let name = self.text()?;
            if self.byte()? != 0x92 || attributes.iter().any(|other| other.name == name) {
                return None;
            }
            attributes.push(Attribute {
                name,
                data_type: self.text()?,
                value: self.value()?,
            });
        }
        Some(attributes)
    }
}

/// The MD5 of attributes, see `visibility/contract/digests.py`.
pub fn md5_of_attributes(attributes: &[&Attribute]) -> [u8; 16] {
    let mut sorted = attributes.to_vec();
    sorted.sort_unstable_by_key(|attribute| attribute.name); // bytes of UTF-8: by code points
    let mut pieces = Vec::new();
    let add = |pieces: &mut Vec<u8>, piece: &[u8]| {
        pieces.extend_from_slice(&(piece.len() as u32).to_be_bytes());
        pieces.extend_from_slice(piece);
    };
    for attribute in sorted {
        add(&mut pieces, attribute.name.as_bytes());
        add(&mut pieces, attribute.data_type.as_bytes());
        pieces.push(if attribute.is_binary() { 2 } else { 1 });
        add(&mut pieces, attribute.value);
    }
    md5::compute(&pieces).0
}
