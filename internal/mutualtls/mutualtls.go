// Package mutualtls provides TLS connections on which both sides need a
// certificate of the same authority. The files are read for every handshake, so
// renewals need no restart. Existing connections are kept.
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

// Files are the PEM files of one side. The certificate can be followed by
// intermediate ones. Several authorities are possible, so that one can replace
// another.
type Files struct {
	Cert string // of this side
	Key  string // readable only by its owner and group
	CA   string // for certificates of the other side
}

// None reports whether no file is set.
func (f Files) None() bool { return f == Files{} }

// Check refuses missing or unreadable files, a key that other users can read or
// that does not match, and an expired certificate.
func (f Files) Check() error {
	_, err := f.load(x509.ExtKeyUsageAny)
	return err
}

// Server returns the configuration of a server that accepts only TLS 1.3 with a
// certificate of the authority. A handshake fails if the current files are
// invalid.
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

// Client returns the configuration of one handshake. serverName is the host
// name or address in the server's certificate.
func Client(f Files, serverName string) (*tls.Config, error) {
	if serverName == "" {
		return nil, errors.New("TLS: the expected server name is not set")
	}
	now, err := f.load(x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, err
	}
	c := base()
	// Send the certificate even if the server lists other authorities: its
	// error is more specific than that of a missing certificate.
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &now.own, nil }
	c.RootCAs = now.authorities
	c.ServerName = serverName
	return c, nil
}

// base disables session tickets: a resumed session would skip the current
// certificates and authorities.
func base() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, SessionTicketsDisabled: true}
}

type material struct {
	own         tls.Certificate
	authorities *x509.CertPool
}

func (f Files) load(usage x509.ExtKeyUsage) (material, error) {
	for _, file := range []struct{ what, path string }{{"certificate", f.Cert}, {"private key", f.Key}, {"authority", f.CA}} {
		if file.path == "" {
			return material{}, fmt.Errorf("TLS: no file is set for the %s: certificate, private key and authority are required", file.what)
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
		return tls.Certificate{}, fmt.Errorf("private key %s is accessible to all users (mode %04o): restrict it to its owner and group, with chmod 600 or defaultMode: 0400 of a Kubernetes secret volume", f.Key, mode)
	}
	if strings.Contains(string(key), "ENCRYPTED") {
		return tls.Certificate{}, fmt.Errorf("private key %s is encrypted: use a key without passphrase", f.Key)
	}
	own, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate %s with private key %s: %w", f.Cert, f.Key, err)
	}
	if err := inTime(own.Leaf, time.Now()); err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate %s (%s): %w", f.Cert, own.Leaf.Subject, err)
	}
	if !isFor(own.Leaf, usage) {
		return tls.Certificate{}, fmt.Errorf("certificate %s (%s): its extended key usage does not allow the use as %s", f.Cert, own.Leaf.Subject, side(usage))
	}
	return own, nil
}

func inTime(c *x509.Certificate, at time.Time) error {
	switch {
	case at.After(c.NotAfter):
		return fmt.Errorf("expired on %s: replace it", c.NotAfter.UTC().Format(time.RFC3339))
	case at.Before(c.NotBefore):
		return fmt.Errorf("not valid before %s: check this machine's clock", c.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

// isFor: a certificate without extended key usage allows all.
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
			continue // an expired CA certificate can precede its successor
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
	return nil, errors.New("no PEM certificate found (-----BEGIN CERTIFICATE-----)")
}

// largest in bytes, in case of a wrong path.
const largest = 1 << 20

// read returns content and mode of the same open file.
func read(path string) ([]byte, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // do not block on a pipe
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", path)
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
