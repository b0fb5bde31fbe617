// Package mutualtls gives servers of one owner a connection on which both
// sides show a certificate of the same authority. The files are read for every
// handshake: a certificate that was renewed counts at once, without a restart,
// and an authority that was taken out is trusted no more. A connection that is
// there already stays.
package mutualtls

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Files are what one side has, in PEM. The certificate may be followed by those
// between it and the authority. There may be several authorities, so that one
// can take over from another.
type Files struct {
	Cert string // path of this side's certificate
	Key  string // path of its private key, which only its owner and group may read
	CA   string // path of the authorities that the other side must have been signed by
}

// None reports whether no file is named.
func (f Files) None() bool { return f == Files{} }

// Check reports what is wrong with the files now: missing, unreadable, a key
// that others may read or that does not belong to the certificate, a
// certificate that has expired.
func (f Files) Check() error {
	_, err := f.load(x509.ExtKeyUsageAny)
	return err
}

// Server returns the configuration of a server that takes TLS 1.3 from clients
// with a certificate of the authority, and nothing else. It reads the files
// again in each handshake; one fails when they are not in order then.
func Server(f Files) (*tls.Config, error) {
	if _, err := f.load(x509.ExtKeyUsageServerAuth); err != nil {
		return nil, err
	}
	c := base()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now, err := f.load(x509.ExtKeyUsageServerAuth)
		if err != nil {
			return nil, err
		}
		c := base()
		c.Certificates = []tls.Certificate{now.own}
		c.ClientAuth = tls.RequireAndVerifyClientCert
		c.ClientCAs = now.authorities
		return c, nil
	}
	return c, nil
}

// Client returns the configuration of one handshake, from the files as they
// are now. serverName is the host name or address that the server's
// certificate must be for.
func Client(f Files, serverName string) (*tls.Config, error) {
	if serverName == "" {
		return nil, errors.New("TLS: no name is given that the server's certificate must be for")
	}
	now, err := f.load(x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, err
	}
	c := base()
	// Also when the server names authorities that did not sign it: what the
	// server then says of it tells more than that none was shown.
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &now.own, nil }
	c.RootCAs = now.authorities
	c.ServerName = serverName
	return c, nil
}

// base holds what is the same on both sides. A resumed session would skip the
// look at certificates and authorities of today.
func base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, SessionTicketsDisabled: true}
}

// material is what the files hold.
type material struct {
	own         tls.Certificate
	authorities *x509.CertPool
}

func (f Files) load(usage x509.ExtKeyUsage) (material, error) {
	for _, file := range []struct{ what, path string }{{"certificate", f.Cert}, {"private key", f.Key}, {"authority", f.CA}} {
		if file.path == "" {
			return material{}, fmt.Errorf("TLS: no file is named for the %s; certificate, private key and authority are all needed", file.what)
		}
	}
	own, err := f.loadOwn(usage)
	if err != nil {
		return material{}, fmt.Errorf("TLS: %w", err)
	}
	authorities, err := loadAuthorities(f.CA)
	if err != nil {
		return material{}, fmt.Errorf("TLS: authority %s: %w", f.CA, err)
	}
	return material{own, authorities}, nil
}

func (f Files) loadOwn(usage x509.ExtKeyUsage) (tls.Certificate, error) {
	cert, _, err := read(f.Cert)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate: %w", err)
	}
	key, info, err := read(f.Key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("private key: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return tls.Certificate{}, fmt.Errorf("private key %s: everybody may use it (mode %04o); allow only its owner and group: chmod 600, or defaultMode: 0400 of a Kubernetes secret volume", f.Key, mode)
	}
	if strings.Contains(string(key), "ENCRYPTED") {
		return tls.Certificate{}, fmt.Errorf("private key %s: it is protected by a passphrase, which nobody is there to type; write it without one", f.Key)
	}
	own, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate %s with private key %s: %w", f.Cert, f.Key, err)
	}
	if err := inTime(own.Leaf, time.Now()); err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate %s (%s): %w", f.Cert, own.Leaf.Subject, err)
	}
	if !isFor(own.Leaf, usage) {
		return tls.Certificate{}, fmt.Errorf("certificate %s (%s): its extended key usage does not allow it to be used as a %s", f.Cert, own.Leaf.Subject, side(usage))
	}
	return own, nil
}

// inTime reports that a certificate is not valid at a moment.
func inTime(c *x509.Certificate, at time.Time) error {
	switch {
	case at.After(c.NotAfter):
		return fmt.Errorf("it expired on %s; put a new one there", c.NotAfter.UTC().Format(time.RFC3339))
	case at.Before(c.NotBefore):
		return fmt.Errorf("it is not valid before %s; is this machine's clock right?", c.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// isFor reports whether a certificate may be used so. One without any usage is
// for all.
func isFor(c *x509.Certificate, usage x509.ExtKeyUsage) bool {
	return usage == x509.ExtKeyUsageAny || len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) == 0 ||
		slices.Contains(c.ExtKeyUsage, usage) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny)
}

func side(usage x509.ExtKeyUsage) string {
	if usage == x509.ExtKeyUsageServerAuth {
		return "server (serverAuth)"
	}
	return "client (clientAuth)"
}

func loadAuthorities(path string) (*x509.CertPool, error) {
	text, _, err := read(path)
	if err != nil {
		return nil, err
	}
	pool, found, late := x509.NewCertPool(), 0, error(nil)
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if err := inTime(c, time.Now()); err != nil {
			late = fmt.Errorf("%s: %w", c.Subject, err)
			continue // an old one may stay beside its successor
		}
		pool.AddCert(c)
		found++
	}
	switch {
	case found > 0:
		return pool, nil
	case late != nil:
		return nil, late
	}
	return nil, errors.New("it holds no certificate in PEM (-----BEGIN CERTIFICATE-----)")
}

// largest bounds a file in bytes: a wrong path can name anything.
const largest = 1 << 20

// read returns a regular file. Its mode is of what was read, whatever the path
// leads to later.
func read(path string) ([]byte, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for a writer
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is no regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, largest+1))
	if err != nil {
		return nil, nil, err
	}
	if len(text) > largest {
		return nil, nil, fmt.Errorf("%s is larger than %d bytes", path, largest)
	}
	return text, info, nil
}
