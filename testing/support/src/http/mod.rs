//! A small blocking HTTP/1.1 client that sends exactly the given bytes and shows exactly what came
//! back.

pub mod grpc;
pub mod http2;
pub mod jwt;
pub(crate) mod message;

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use socket2::{Domain, Protocol, Socket, Type};

use crate::http::message::MAX_HEADERS;
pub use crate::http::message::{Request, Response};

const TIMEOUT: Duration = Duration::from_secs(90);
const SWITCHING_PROTOCOLS: u16 = 101;

/// GET over a connection of its own.
///
/// # Errors
/// When no answer comes within 90 s.
pub fn get(port: u16, path: &str) -> Result<Response> {
    Client::connect(port)?.send(&Request::get(path))
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// A connection that is kept for the next request.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Stream>,
}

impl Client {
    /// Connects to 127.0.0.1:`port`.
    ///
    /// # Errors
    /// When nothing listens there.
    pub fn connect(port: u16) -> Result<Self> {
        Self::connect_from(Ipv4Addr::LOCALHOST.into(), (Ipv4Addr::LOCALHOST, port).into())
    }

    /// Connects from this local address, such as 127.0.0.7 (on Linux any of 127.0.0.0/8), so that
    /// the server sees another client.
    ///
    /// # Errors
    /// When nothing listens there, or the address does not belong to this machine.
    pub fn connect_from(own: IpAddr, to: SocketAddr) -> Result<Self> {
        Self::over(Stream::Tcp(tcp(own, to)?))
    }

    /// Connects to 127.0.0.1:`port` with TLS, as to a server named `localhost`. Whether the server
    /// takes the client's certificate shows with the first request.
    ///
    /// # Errors
    /// When nothing listens there.
    pub fn connect_tls(port: u16, config: &Arc<ClientConfig>) -> Result<Self> {
        Self::connect_tls_to("localhost", port, config)
    }

    /// Connects with TLS, as to a server of this name.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn connect_tls_to(name: &str, port: u16, config: &Arc<ClientConfig>) -> Result<Self> {
        let stream = tcp(Ipv4Addr::LOCALHOST.into(), (Ipv4Addr::LOCALHOST, port).into())?;
        let connection = ClientConnection::new(Arc::clone(config), name.to_owned().try_into()?)?;
        Self::over(Stream::Tls(Box::new(StreamOwned::new(connection, stream))))
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// When nothing listens there.
    pub fn connect_unix(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path)
            .with_context(|| format!("nothing answers on {}", path.display()))?;
        Self::over(Stream::Unix(stream))
    }

    fn over(stream: Stream) -> Result<Self> {
        let client = Self { stream: BufReader::new(stream) };
        client.set_timeout(TIMEOUT)?;
        Ok(client)
    }

    /// How long to wait for bytes of an answer (90 s unless set).
    ///
    /// # Errors
    /// When the system refuses.
    pub fn set_timeout(&self, timeout: Duration) -> Result<()> {
        match self.stream.get_ref() {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(timeout))?,
            Stream::Unix(stream) => stream.set_read_timeout(Some(timeout))?,
            Stream::Tls(stream) => stream.sock.set_read_timeout(Some(timeout))?,
        }
        Ok(())
    }

    /// Sends a request and waits for the whole answer.
    ///
    /// # Errors
    /// When the connection is closed, or what comes is not HTTP.
    pub fn send(&mut self, request: &Request) -> Result<Response> {
        self.start(request)?;
        self.finish()
    }

    /// Sends these bytes over an upgraded connection and waits for the same number of bytes.
    ///
    /// # Errors
    /// When the connection is closed.
    pub fn exchange(&mut self, bytes: &[u8]) -> Result<Vec<u8>> {
        let stream = self.stream.get_mut();
        stream.write_all(bytes).and_then(|()| stream.flush())?;
        let mut answer = Vec::new();
        self.take(bytes.len() as u64, &mut answer)?;
        Ok(answer)
    }

    /// Sends a request without waiting. Dropping the client then simulates a client that leaves.
    ///
    /// # Errors
    /// When the connection is closed.
    pub fn start(&mut self, request: &Request) -> Result<()> {
        let stream = self.stream.get_mut();
        stream
            .write_all(&request.bytes())
            .and_then(|()| stream.flush())
            .context("cannot send the request")
    }

    /// Waits for the answer to what [`start`](Self::start) sent: for an answer to HEAD, see
    /// [`finish_without_body`](Self::finish_without_body).
    ///
    /// # Errors
    /// When the connection is closed, or what comes is not HTTP.
    pub fn finish(&mut self) -> Result<Response> {
        loop {
            let mut response = self.head().context("no answer")?;
            if response.status == SWITCHING_PROTOCOLS {
                return Ok(response);
            }
            if response.status / 100 != 1 {
                response.body = self.body(&response).context("no whole answer")?;
                return Ok(response);
            }
        }
    }

    /// Waits for the headers of an answer that has no body whatever they say, as that to HEAD.
    ///
    /// # Errors
    /// When the connection is closed, or what comes is not HTTP.
    pub fn finish_without_body(&mut self) -> Result<Response> {
        self.head().context("no answer")
    }

    /// Waits for the headers of an answer in chunks, and reads its body until `is_enough` says so
    /// of what has come.
    ///
    /// # Errors
    /// When the connection is closed or the body ends before, or what comes is not HTTP.
    pub fn read_until(&mut self, is_enough: impl Fn(&[u8]) -> bool) -> Result<()> {
        self.head().context("no answer")?;
        let mut body = Vec::new();
        while !is_enough(&body) {
            ensure!(self.chunk(&mut body)?, "the body ended: {}", body.escape_ascii());
        }
        Ok(())
    }

    fn head(&mut self) -> Result<Response> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            if self.stream.read_until(b'\n', &mut bytes)? == 0 {
                bail!("the connection was closed");
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Response::new(&mut headers);
        head.parse(&bytes)?;
        let headers = head.headers.iter().map(|h| (h.name.to_owned(), h.value.to_vec())).collect();
        Ok(Response { status: head.code.context("no status")?, headers, body: Vec::new() })
    }

    fn body(&mut self, head: &Response) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        if head.status == 204 || head.status == 304 {
            return Ok(body);
        }
        if head
            .header("transfer-encoding")
            .is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
        {
            while self.chunk(&mut body)? {}
        } else if let Some(length) = head.header("content-length") {
            self.take(length.parse()?, &mut body)?;
        } else {
            self.stream.read_to_end(&mut body)?;
        }
        Ok(body)
    }

    /// Reads one chunk; false after the last.
    fn chunk(&mut self, body: &mut Vec<u8>) -> Result<bool> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size =
            u64::from_str_radix(size, 16).with_context(|| format!("not a chunk: {line:?}"))?;
        self.take(size, body)?;
        // The line end after a chunk, or the (empty) trailers after the last one.
        self.take(2, &mut Vec::new())?;
        Ok(size > 0)
    }

    fn take(&mut self, length: u64, into: &mut Vec<u8>) -> Result<()> {
        if (&mut self.stream).take(length).read_to_end(into)? as u64 != length {
            bail!("the connection was closed in the middle of a body");
        }
        Ok(())
    }
}

fn tcp(own: IpAddr, to: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket
        .bind(&SocketAddr::new(own, 0).into())
        .with_context(|| format!("cannot use address {own}"))?;
    socket
        .connect_timeout(&to.into(), TIMEOUT)
        .with_context(|| format!("nothing answers on {to}"))?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        };
        read.map_err(|error| match error.kind() {
            // Systems name an elapsed read timeout differently.
            ErrorKind::WouldBlock => {
                std::io::Error::new(ErrorKind::TimedOut, "nothing came in time")
            }
            _ => error,
        })
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Tls(stream) => stream.flush(),
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    /// Answers the first request of one connection with these bytes. Returns the received bytes.
    fn exchange(request: &Request, answer: &'static [u8]) -> (Vec<u8>, Result<Response>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let length = request.bytes().len();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = vec![0; length];
            stream.read_exact(&mut seen).unwrap();
            stream.write_all(answer).unwrap();
            seen
        });
        let response = Client::connect(port).unwrap().send(request);
        (server.join().unwrap(), response)
    }

    #[test]
    fn any_bytes_are_sent_unchanged() {
        let request = Request::get("/").raw_header(b"x", b"\xff{\0}").bearer("t");
        let (seen, response) =
            exchange(&request, b"HTTP/1.1 204 No Content\r\nA: 1\r\na: 2\r\n\r\n");
        assert_eq!(
            seen,
            b"GET / HTTP/1.1\r\nx: \xff{\0}\r\nauthorization: Bearer t\r\nhost: localhost\r\n\r\n"
        );
        assert_eq!(response.unwrap().header_all("a"), ["1", "2"]);
    }

    #[test]
    fn chunks_are_joined_and_interim_responses_skipped() {
        let answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(exchange(&Request::get("/"), answer).1.unwrap().text(), "abc0123456789");
    }

    #[test]
    fn malformed_response_is_an_error() {
        for answer in
            [&b""[..], b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", b"no http\r\n\r\n"]
        {
            assert!(exchange(&Request::get("/"), answer).1.is_err());
        }
    }
}
