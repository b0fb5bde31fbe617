package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cleatproject/cleat/internal/mutualtls"
)

// Authority is a certificate authority.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	PEM  []byte
}

// NewAuthority makes a new self-signed authority.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, key := sign(t, template, nil)
	return &Authority{Value(x509.ParseCertificate(der))(t), key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// Files issues a certificate for names and addresses, for servers and clients,
// and writes it into a new directory with its key and the authority. change, if
// not nil, edits the certificate before it is signed.
func (a *Authority) Files(t testing.TB, change func(*x509.Certificate), names ...string) mutualtls.Files {
	t.Helper()
	dir := t.TempDir()
	f := mutualtls.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
	cert, key := a.Issue(t, change, names...)
	ReplaceFile(t, f.Cert, cert, 0o644)
	ReplaceFile(t, f.Key, key, 0o600)
	ReplaceFile(t, f.CA, a.PEM, 0o644)
	return f
}

// Issue issues a certificate as Files does, and returns it and its key in PEM.
func (a *Authority) Issue(t testing.TB, change func(*x509.Certificate), names ...string) (cert, key []byte) {
	t.Helper()
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		template.Subject.CommonName = names[0]
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	if change != nil {
		change(template)
	}
	der, private := sign(t, template, a)
	secret := Value(x509.MarshalPKCS8PrivateKey(private))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// Expired is a change for Files: the certificate expired a minute ago.
func Expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }

// ReplaceFile writes a file atomically, as a renewal of certificates does.
func ReplaceFile(t testing.TB, path string, text []byte, mode os.FileMode) {
	t.Helper()
	Must(t, os.WriteFile(path+".new", text, mode))
	Must(t, os.Chmod(path+".new", mode)) // the umask can have cleared bits
	Must(t, os.Rename(path+".new", path))
}

// sign makes a certificate with a new key; without an authority it is
// self-signed.
func sign(t testing.TB, template *x509.Certificate, by *Authority) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key := Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template.SerialNumber = Value(rand.Int(rand.Reader, big.NewInt(1<<62)))(t)
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	return Value(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer))(t), key
}
