//! Receipt handles, see `visibility/content/receipts.py`.

use blake2b_simd::{Params, State};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::hex;

pub const NAME_BYTES: usize = 12;
const KEY_BYTES_MAX: usize = 64;
pub const MAC_BYTES: usize = 16;
pub const HANDLE_DIGITS: usize = 2 * (NAME_BYTES + MAC_BYTES);

/// One queue's key, ready to make and read handles.
#[pyclass(frozen, module = "holdfast_native")]
pub struct ReceiptKey {
    state: State,
}

impl ReceiptKey {
    pub fn write(&self, sequence: u64, delivery: u32, digits: &mut [u8; HANDLE_DIGITS]) {
        let mut name = [0; NAME_BYTES];
        name[..8].copy_from_slice(&sequence.to_be_bytes());
        name[8..].copy_from_slice(&delivery.to_be_bytes());
        let mac = self.state.clone().update(&name).finalize();
        hex::write(&name, &mut digits[..2 * NAME_BYTES]);
        hex::write(mac.as_bytes(), &mut digits[2 * NAME_BYTES..]);
    }
}

#[pymethods]
impl ReceiptKey {
    #[new]
    fn new(key: &[u8]) -> PyResult<Self> {
        if key.len() > KEY_BYTES_MAX {
            return Err(PyValueError::new_err("a key has at most 64 bytes"));
        }
        let state = Params::new().hash_length(MAC_BYTES).key(key).to_state();
        Ok(Self { state })
    }

    /// The handle of the message's `delivery`-th delivery.
    fn handle(&self, sequence: u64, delivery: u32) -> String {
        let mut digits = [0; HANDLE_DIGITS];
        self.write(sequence, delivery, &mut digits);
        String::from_utf8_lossy(&digits).into_owned()
    }

    /// What `named` says of each handle; None if that is None for one of them.
    fn all_named(&self, handles: Vec<Bound<'_, PyString>>) -> Option<Vec<(u64, u32)>> {
        handles.iter().map(|handle| self.named(handle)).collect()
    }

    /// The sequence and the delivery that a handle of this key names, else None.
    fn named(&self, handle: &Bound<'_, PyString>) -> Option<(u64, u32)> {
        let handle = handle.to_str().ok()?; // not of half a surrogate pair
        let mut name = [0; NAME_BYTES];
        hex::read(handle.as_bytes().get(..2 * NAME_BYTES)?, &mut name)?;
        let sequence = u64::from_be_bytes(name[..8].try_into().ok()?);
        let delivery = u32::from_be_bytes(name[8..].try_into().ok()?);
        let mut expected = [0; HANDLE_DIGITS];
        self.write(sequence, delivery, &mut expected);
        hex::is_same(&expected, handle.as_bytes()).then_some((sequence, delivery))
    }
}
