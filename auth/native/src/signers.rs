//! The short path of signatures, see `auth/sigv4.py`: the same Caller as the full path, or None.

use std::collections::{HashMap, HashSet};

use pyo3::prelude::*;
use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

use crate::head::Headers;
use crate::hex;

const ALGORITHM: &[u8] = b"AWS4-HMAC-SHA256\n";
const BLOCK_BYTES: usize = 64;
const SIGNATURE_DIGITS: usize = 2 * SHA256_OUTPUT_LEN;
const DAY_DIGITS: usize = 8;

/// The constants of all requests that share their Authorization header up to the signature. The
/// hashes are those of HMAC after its key, `inner` also after the first line of the text.
struct Signer {
    caller: Py<PyAny>,
    signed_names: Vec<Vec<u8>>,
    /// The last lines of a canonical request before the hash of the body.
    names_line: Vec<u8>,
    name_lists: HashSet<Vec<u8>>,
    day: Vec<u8>,
    scope_line: Vec<u8>,
    inner: Context,
    outer: Context,
    expires_at_ms: f64,
    security_token: Option<Vec<u8>>,
}

/// What earlier requests were verified with. Bounded: a full part is emptied.
#[pyclass(module = "holdfast_native")]
pub struct Signers {
    signers_max: usize,
    name_lists_max: usize,
    dates_max: usize,
    resources_max: usize,
    skew_s: f64,
    signers: HashMap<Vec<u8>, Signer>,
    dates: HashMap<Vec<u8>, f64>,
    resources: HashMap<Vec<u8>, Vec<u8>>,
}

#[pymethods]
impl Signers {
    #[new]
    #[pyo3(signature = (*, signers_max, name_lists_max, dates_max, resources_max, skew_s))]
    fn new(
        signers_max: usize,
        name_lists_max: usize,
        dates_max: usize,
        resources_max: usize,
        skew_s: f64,
    ) -> Self {
        Self {
            signers_max,
            name_lists_max,
            dates_max,
            resources_max,
            skew_s,
            signers: HashMap::new(),
            dates: HashMap::new(),
            resources: HashMap::new(),
        }
    }

    /// Note a request whose signature was valid. `prefix` is its Authorization header up to the
    /// signature; `signed`: signed names, derived key, scope; `at`: date as sent and in seconds,
    /// target, and path and query as they are signed.
    #[allow(clippy::too_many_arguments, clippy::type_complexity)]
    #[pyo3(signature = (prefix, caller, headers, signed, at, expires_at_ms, security_token))]
    fn learn(
        &mut self,
        prefix: &[u8],
        caller: Py<PyAny>,
        headers: &Headers,
        signed: (Vec<Vec<u8>>, Vec<u8>, Vec<u8>),
        at: (Vec<u8>, f64, Vec<u8>, Vec<u8>),
        expires_at_ms: f64,
        security_token: Option<Vec<u8>>,
    ) {
        let (signed_names, key, scope) = signed;
        let (date, signed_at_s, target, resource) = at;
        if key.len() > BLOCK_BYTES || scope.len() < DAY_DIGITS {
            return;
        }
        if !self.signers.contains_key(prefix) {
            let signer = Signer::new(
                caller,
                signed_names,
                &key,
                &scope,
                expires_at_ms,
                security_token,
            );
            put(&mut self.signers, prefix.to_vec(), signer, self.signers_max);
        }
        if let Some(signer) = self.signers.get_mut(prefix) {
            if signer.name_lists.len() >= self.name_lists_max {
                signer.name_lists.clear();
            }
            signer.name_lists.insert(headers.names.clone());
        }
        put(&mut self.dates, date, signed_at_s, self.dates_max);
        put(&mut self.resources, target, resource, self.resources_max);
    }

    /// The caller of a signed POST, or None where only the full path can tell.
    fn verify(
        &self,
        py: Python<'_>,
        target: &[u8],
        headers: &Headers,
        body: &[u8],
        now_s: f64,
    ) -> Option<Py<PyAny>> {
        let authorization = headers.value(b"authorization")?;
        let at = authorization.len().checked_sub(SIGNATURE_DIGITS)?;
        let (prefix, signature) = authorization.split_at(at);
        let signer = self.signers.get(prefix)?;
        if !signer.name_lists.contains(&headers.names) || now_s * 1000.0 >= signer.expires_at_ms {
            return None;
        }
        let date = headers.value(b"x-amz-date")?;
        let signed_at_s = self.dates.get(date)?;
        let resource = self.resources.get(target)?;
        if !date.starts_with(&signer.day) || (now_s - signed_at_s).abs() > self.skew_s {
            return None;
        }
        if let Some(token) = &signer.security_token {
            if !hex::is_same(token, headers.value(b"x-amz-security-token")?) {
                return None;
            }
        }
        let payload = digits_of(sha256_of(body));
        if headers
            .value(b"x-amz-content-sha256")
            .is_some_and(|hash| hash != payload)
        {
            return None;
        }
        let mut canonical = Context::new(&SHA256);
        canonical.update(b"POST\n");
        canonical.update(resource);
        canonical.update(b"\n");
        for name in &signer.signed_names {
            let value = headers.value(name)?;
            if value.windows(2).any(|pair| pair == b"  ") {
                return None; // runs of blanks are signed as one
            }
            canonical.update(name);
            canonical.update(b":");
            canonical.update(value);
            canonical.update(b"\n");
        }
        canonical.update(&signer.names_line);
        canonical.update(&payload);
        let mut inner = signer.inner.clone();
        inner.update(date);
        inner.update(&signer.scope_line);
        inner.update(&digits_of(canonical));
        let mut outer = signer.outer.clone();
        outer.update(inner.finish().as_ref());
        hex::is_same(&digits_of(outer), signature).then(|| signer.caller.clone_ref(py))
    }
}

impl Signer {
    fn new(
        caller: Py<PyAny>,
        signed_names: Vec<Vec<u8>>,
        key: &[u8],
        scope: &[u8],
        expires_at_ms: f64,
        security_token: Option<Vec<u8>>,
    ) -> Self {
        let mut inner = padded(key, 0x36);
        inner.update(ALGORITHM);
        Self {
            caller,
            names_line: [b"\n", signed_names.join(&b';').as_slice(), b"\n"].concat(),
            signed_names,
            name_lists: HashSet::new(),
            day: scope[..DAY_DIGITS].to_vec(),
            scope_line: [b"\n", scope, b"\n"].concat(),
            inner,
            outer: padded(key, 0x5c),
            expires_at_ms,
            security_token,
        }
    }
}

fn padded(key: &[u8], pad: u8) -> Context {
    let mut block = [pad; BLOCK_BYTES];
    for (byte, of_key) in block.iter_mut().zip(key) {
        *byte ^= of_key;
    }
    let mut hash = Context::new(&SHA256);
    hash.update(&block);
    hash
}

fn sha256_of(data: &[u8]) -> Context {
    let mut hash = Context::new(&SHA256);
    hash.update(data);
    hash
}

fn digits_of(hash: Context) -> [u8; SIGNATURE_DIGITS] {
    let mut digits = [0; SIGNATURE_DIGITS];
    hex::write(hash.finish().as_ref(), &mut digits);
    digits
}

fn put<V>(kept: &mut HashMap<Vec<u8>, V>, key: Vec<u8>, value: V, count_max: usize) {
    if kept.len() >= count_max && !kept.contains_key(&key) {
        kept.clear();
    }
    kept.insert(key, value);
}
