//! The grammar of a spec: the server, the export, and the keys.
//!
//! Owns everything that follows `nbd:`. Host names are resolved here, once. The first connection tries each address of
//! a host in order, and later connections use the address that the first one reached.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::net::SocketAddr as UnixAddr;
use std::time::Duration;

use sheave::DeviceError;
use sheave::drivers::{Address, Params, Reach};
use sheave_nbd::wire::MAX_STRING;

use crate::negotiation::Wish;
use crate::tls::Tls;

/// The port that IANA assigned to NBD.
const PORT: u16 = 10_809;
/// Default number of connections of a ring.
const CONNECTIONS: u64 = 4;
/// Largest value of `connections=`.
const MAX_CONNECTIONS: u64 = 16;
/// Default of `timeout=`, after which a request is overdue.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Default of `connect=`, the time limit of a handshake.
const CONNECT: Duration = Duration::from_secs(5);

/// The address of a server.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// The path of a Unix socket, and its address.
    Unix(String, UnixAddr),
    /// One address of a host.
    Tcp(SocketAddr),
}

impl Place {
    pub(crate) fn address(&self) -> Address {
        match self {
            Place::Unix(_, address) => Address::from(address),
            Place::Tcp(address) => Address::from(*address),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Unix(path, _) => f.write_str(path),
            Place::Tcp(address) => address.fmt(f),
        }
    }
}

/// Keys whose values are files that TLS reads.
const TLS_FILES: [&str; 3] = ["ca", "cert", "key"];

/// Returns the resources that a spec needs: its server, and the files that its keys name.
pub(crate) fn reaches(params: &mut Params<'_>) -> Vec<Reach> {
    let path = params.path().unwrap_or_default();
    let server = match path.strip_prefix("unix:") {
        Some(socket) => Reach::Socket(socket.into()),
        None => Reach::Network(format!("the server {}", host_and_port(&path).0)),
    };
    let files = TLS_FILES.into_iter().filter_map(|key| Some(Reach::Reads(params.text(key)?.into())));
    [server].into_iter().chain(files).collect()
}

/// A parsed spec.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) spec: String,
    pub(crate) place: Place,
    /// Further addresses of the host, until the first connection has reached one of them.
    pub(crate) others: Vec<SocketAddr>,
    pub(crate) export: String,
    /// Largest number of connections of a ring.
    pub(crate) connections: u16,
    pub(crate) timeout: Duration,
    pub(crate) connect: Duration,
    pub(crate) read_only: bool,
    /// True to use several connections although the server does not announce multi-conn.
    pub(crate) assume_multi: bool,
    /// True if copies query the block status, to skip holes.
    pub(crate) block_status: bool,
    pub(crate) tls: Option<Tls>,
}

impl Target {
    /// Parses a spec.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Spec`] says what is wrong and what would be right.
    pub(crate) fn read(params: &mut Params<'_>) -> Result<Target, DeviceError> {
        let Some(path) = params.path() else {
            let why = "no server. Name its socket or its host: nbd:unix:/run/disk.sock or nbd:HOST:PORT/EXPORT";
            return Err(params.error(why));
        };
        let named = params.text("export");
        let connections = params.number("connections", 1, MAX_CONNECTIONS)?.unwrap_or(CONNECTIONS) as u16;
        let timeout = params.duration("timeout")?.unwrap_or(TIMEOUT);
        let connect = params.duration("connect")?.unwrap_or(CONNECT);
        let read_only = params.switch("readonly")?.unwrap_or(false);
        let assume_multi = params.choice("multi_conn", &[("server", false), ("assume", true)])?.unwrap_or(false);
        let block_status = params.switch("block_status")?.unwrap_or(true);
        let wishes = [("require", Wish::Require), ("allow", Wish::Allow), ("off", Wish::Off)];
        let wish = params.choice("tls", &wishes)?;
        let [ca, cert, key] = TLS_FILES.map(|key| params.text(key));
        let name = params.text("tls-hostname");
        params.finish()?;
        if timeout.is_zero() || connect.is_zero() {
            return Err(params.error("timeout= and connect= are times above 0, such as 30s"));
        }
        let (place, others, in_path) = match path.strip_prefix("unix:") {
            Some(socket) => (unix(params, socket)?, Vec::new(), None),
            None => tcp(params, &path)?,
        };
        let tls = tls(params, wish, [ca, cert, key, name], &path)?;
        let export = match (named, in_path) {
            (Some(_), Some(_)) => {
                return Err(params.error("the export is named twice: behind the slash and by export="));
            }
            (Some(name), None) | (None, Some(name)) => name,
            (None, None) => String::new(),
        };
        if export.len() > MAX_STRING {
            return Err(params.error(format!("the export's name has more than {MAX_STRING} bytes")));
        }
        let spec = params.spec().to_owned();
        Ok(Target {
            spec,
            place,
            others,
            export,
            connections,
            timeout,
            connect,
            read_only,
            assume_multi,
            block_status,
            tls,
        })
    }

    /// Returns the requirement for TLS.
    pub(crate) fn wish(&self) -> Wish {
        self.tls.as_ref().map_or(Wish::Off, |tls| tls.wish)
    }

    /// Names the device in errors and notices.
    pub(crate) fn words(&self) -> String {
        format!("NBD server {}, export '{}'", self.place, self.export)
    }
}

fn unix(params: &Params<'_>, path: &str) -> Result<Place, DeviceError> {
    let address = UnixAddr::from_pathname(path).ok().filter(|_| !path.is_empty());
    let address =
        address.ok_or_else(|| params.error("this is no path of a socket: it is empty or longer than 107 bytes"))?;
    Ok(Place::Unix(path.to_owned(), address))
}

/// Parses the keys of TLS. Files without `tls=` imply `tls=require`.
fn tls(
    params: &Params<'_>,
    wish: Option<Wish>,
    [ca, cert, key, name]: [Option<String>; 4],
    path: &str,
) -> Result<Option<Tls>, DeviceError> {
    let given = [&ca, &cert, &key, &name].into_iter().any(Option::is_some);
    let wish = match wish {
        Some(Wish::Off) if given => {
            return Err(params.error("ca=, cert=, key= and tls-hostname= are of no use with tls=off"));
        }
        None if !given => return Ok(None),
        Some(Wish::Off) => return Ok(None),
        wish => wish.unwrap_or(Wish::Require),
    };
    let Some(ca) = ca else {
        return Err(params.error(
            "TLS needs the authority that has issued the server's certificate: ca=PATH, a PEM file; for the public \
             ones that of the system, such as ca=/etc/ssl/certs/ca-certificates.crt",
        ));
    };
    let own = match (&cert, &key) {
        (Some(cert), Some(key)) => Some((cert.as_str(), key.as_str())),
        (None, None) => None,
        _ => return Err(params.error("cert= and key= belong together: give both, or none")),
    };
    let name = match (name, path.starts_with("unix:")) {
        (Some(name), _) => name,
        (None, true) => {
            let why = "a Unix socket has no host name to look for in the certificate: give one by tls-hostname=NAME";
            return Err(params.error(why));
        }
        (None, false) => host_and_port(path).0.to_owned(),
    };
    Tls::load(wish, &ca, own, &name).map(Some).map_err(|why| params.error(why))
}

/// Splits off the host, without the brackets of an IPv6 address, and the port if there is one.
fn host_and_port(text: &str) -> (&str, Option<&str>) {
    let host = text.split_once('/').map_or(text, |(host, _)| host);
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    (name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name), port)
}

/// Parses `HOST[:PORT][/EXPORT]`, with an IPv6 address in brackets. Returns the first address, the others, and the
/// export.
fn tcp(params: &Params<'_>, text: &str) -> Result<(Place, Vec<SocketAddr>, Option<String>), DeviceError> {
    let export = text.split_once('/').map(|(_, export)| export.to_owned());
    let (bare, port) = host_and_port(text);
    let wrong = |port| params.error(format!("'{port}' is no port. Write nbd:HOST:PORT/EXPORT, or nbd:unix:PATH"));
    let port = port.map_or(Ok(PORT), |port| port.parse().map_err(|_| wrong(port)))?;
    if bare.is_empty() {
        return Err(params.error("no host. Write nbd:HOST:PORT/EXPORT, or nbd:unix:PATH for a Unix socket"));
    }
    let mut found = (bare, port).to_socket_addrs().map_err(|source| DeviceError::Host {
        what: format!("looking for the host '{bare}'"),
        fix: "Check its name, or write its address".into(),
        source,
    })?;
    match found.next() {
        Some(address) => Ok((Place::Tcp(address), found.collect(), export)),
        None => Err(params.error(format!("the host '{bare}' has no address"))),
    }
}

#[cfg(test)]
mod tests {
    use sheave::drivers::Registry;

    fn said(spec: &str) -> String {
        let mut registry = Registry::standard();
        crate::register(&mut registry).expect("a free name");
        registry.open(spec).expect_err("there is no server").to_string()
    }

    #[test]
    fn an_accepted_spec_fails_for_want_of_a_server_and_names_it() {
        for (spec, names) in [
            ("nbd:unix:/nowhere/disk.sock", "NBD server /nowhere/disk.sock, export ''"),
            ("nbd:unix:/nowhere/disk.sock,export=a/b,timeout=2s,connections=2", "export 'a/b'"),
            ("nbd:\"unix:/nowhere/a,b=c.sock\",readonly=on,multi_conn=assume", "/nowhere/a,b=c.sock"),
            ("nbd:127.0.0.1:1/x", "NBD server 127.0.0.1:1, export 'x'"),
            ("nbd:127.0.0.1:1", "export ''"),
            ("nbd:[::1]:1/x/y", "NBD server [::1]:1, export 'x/y'"),
            ("nbd:localhost:1/,connect=1s", ":1, export ''"),
        ] {
            let said = said(spec);
            assert!(said.contains(names) && said.contains("Is the server there"), "{spec}: {said}");
        }
    }

    #[test]
    fn a_wrong_spec_gets_an_error_with_cause_and_fix() {
        let long = format!("nbd:unix:/{}", "x".repeat(120));
        for (spec, says) in [
            ("nbd:", "nbd:unix:/run/disk.sock or nbd:HOST:PORT/EXPORT"),
            ("nbd:unix:", "no path of a socket"),
            (long.as_str(), "no path of a socket"),
            ("nbd:host:port/x", "'port' is no port"),
            ("nbd:host:99999/x", "'99999' is no port"),
            ("nbd::10809/x", "no host"),
            ("nbd:127.0.0.1:1/x,export=y", "named twice"),
            ("nbd:unix:/x,connections=17", "from 1 to 16"),
            ("nbd:unix:/x,timeout=0s", "times above 0"),
            ("nbd:unix:/x,cache=on", "key 'cache' is unknown"),
            ("nbd:unix:/x,tls=maybe", "give one of require, allow, off"),
            ("nbd:127.0.0.1:1,tls=require", "ca=PATH"),
            ("nbd:127.0.0.1:1,tls=off,ca=/x", "of no use with tls=off"),
            ("nbd:127.0.0.1:1,ca=/nowhere/ca.pem", "ca=/nowhere/ca.pem: No such file"),
            ("nbd:127.0.0.1:1,ca=/x,cert=/y", "cert= and key= belong together"),
            ("nbd:unix:/x,tls=require,ca=/x", "tls-hostname=NAME"),
        ] {
            let said = said(spec);
            assert!(said.contains(says), "{spec}: {said}");
        }
    }
}
