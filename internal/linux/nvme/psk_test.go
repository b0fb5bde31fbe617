package nvme

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"hash/crc32"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

// Keys of test/psk.c of libnvme. Its digests of version 1 identities are made of
// the retained PSK. The TLS PSKs were computed by `openssl kdf`.
const (
	psk32 = "VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"
	psk48 = "VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:"

	pskHost, pskSubsystem = "nqn.psk-test-host", "nqn.psk-test-subsys"
)

func TestPSK(t *testing.T) {
	for _, c := range []struct {
		text     string
		digest   string // of the retained PSK; empty: not published
		hash     func() hash.Hash
		identity string
		tls      string
	}{
		{"NVMeTLSkey-1:00:" + psk32, "", sha256.New, "NVMe0R01", "ec85300ba827726bd3bc4fc07f3a34aec5fe7c8ccac05fefc2f021c74e0df9ef"},
		{
			"NVMeTLSkey-1:01:" + psk32, "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=", sha256.New,
			"NVMe0R01", "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68",
		},
		{"NVMeTLSkey-1:00:" + psk48, "", sha512.New384, "NVMe0R02", "b5dd464067a9378ba2226d71f005d7ac90ed8696e4b2142084384365597201d33ba26f8aeeb529574d4267bd294a828e"},
		{
			"NVMeTLSkey-1:02:" + psk48, "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a", sha512.New384,
			"NVMe0R02", "f42ba63824cdfe421914c582921f85b5b5b7e2d4df084caeedc9be20b212e8bb0fe8a23e9d59a1c8fc6449da4970a78d",
		},
	} {
		p := testkit.Value(ParsePSK(c.text))(t)
		identity, key, err := p.derive(pskHost, pskSubsystem)
		if want := c.identity + " " + pskHost + " " + pskSubsystem; err != nil || identity != want || hex.EncodeToString(key) != c.tls {
			t.Errorf("%s: %q, %x, %v; want %q, %s", c.text, identity, key, err, want, c.tls)
		}
		if c.digest == "" {
			continue
		}
		mac := hmac.New(c.hash, testkit.Value(expandLabel(c.hash, p.secret, "HostNQN", pskHost))(t))
		mac.Write([]byte(pskHost + " " + pskSubsystem + " NVMe-over-Fabrics"))
		if got := base64.StdEncoding.EncodeToString(mac.Sum(nil)); got != c.digest {
			t.Errorf("%s: digest of the retained PSK: %s, want %s", c.text, got, c.digest)
		}
	}
	p := testkit.Value(ParsePSK("NVMeTLSkey-1:01:" + psk32))(t)
	if _, _, err := p.derive(strings.Repeat("h", 223), pskSubsystem+strings.Repeat("s", 20)); errs.KindOf(err) != errs.Unsupported {
		t.Errorf("an identity of more than 255 bytes: %v, want unsupported", err)
	}
}

// encode returns the interchange format of a key.
func encode(digest string, secret []byte) string {
	data := binary.LittleEndian.AppendUint32(secret, crc32.ChecksumIEEE(secret))
	return pskPrefix + digest + ":" + base64.StdEncoding.EncodeToString(data) + ":"
}

func TestParsePSKRefuses(t *testing.T) {
	for text, word := range map[string]string{
		"":                         "begins with NVMeTLSkey-1:",
		"DHHC-1:00:" + psk32:       "begins with NVMeTLSkey-1:",
		"nvmetlskey-1:01:" + psk32: "begins with NVMeTLSkey-1:",
		"NVMeTLSkey-1:01":          "form",
		"NVMeTLSkey-1:01:" + strings.TrimSuffix(psk32, ":"):      "form",
		"NVMeTLSkey-1:03:" + psk32:                               "hash",
		"NVMeTLSkey-1:1:" + psk32:                                "hash",
		"NVMeTLSkey-1:01:" + strings.Replace(psk32, "V", "!", 1): "Base64",
		"NVMeTLSkey-1:01:VRLb\n" + psk32[4:]:                     "Base64",
		"NVMeTLSkey-1:01:" + strings.Replace(psk32, "V", "W", 1): "CRC-32",
		"NVMeTLSkey-1:02:" + psk32:                               "32 bytes",
		"NVMeTLSkey-1:01:" + psk48:                               "48 bytes",
		"NVMeTLSkey-1:01:::":                                     "Base64",
		"NVMeTLSkey-1:01::":                                      "0 bytes",
		encode("00", make([]byte, 64)):                           "64 bytes",
	} {
		if _, err := ParsePSK(text); errs.KindOf(err) != errs.Precondition || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "tnN9AQb2") {
			t.Errorf("%q: %v; want a precondition with %q, without the key", text, err, word)
		}
	}
}

func FuzzParsePSK(f *testing.F) {
	for _, text := range []string{"NVMeTLSkey-1:00:" + psk32, "NVMeTLSkey-1:01:" + psk32, "NVMeTLSkey-1:02:" + psk48, "NVMeTLSkey-1:01::"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePSK(text)
		if err != nil {
			return
		}
		digest := strings.Split(text, ":")[1]
		if again := encode(digest, p.secret[:len(p.secret):len(p.secret)]); again != text {
			t.Errorf("%q is read as %q", text, again)
		}
		if _, key, err := p.derive(pskHost, pskSubsystem); err != nil || len(key) != len(p.secret) {
			t.Errorf("%q: a TLS PSK of %d bytes, %v", text, len(key), err)
		}
	})
}

func TestExplainTLS(t *testing.T) {
	c := connection()
	c.PSK = &PSK{}
	for errno, want := range map[unix.Errno]struct {
		kind errs.Kind
		word string
	}{
		unix.ESRCH:        {errs.Precondition, "tlshd"},
		unix.EACCES:       {errs.Unauthenticated, "tlsKey"},
		unix.ENOKEY:       {errs.Unauthenticated, "tlsKey"},
		unix.ETIMEDOUT:    {errs.Unavailable, "tlshd"},
		unix.ECONNREFUSED: {errs.Unavailable, "refused"},
	} {
		err := c.explain(&fs.PathError{Op: "write", Path: "/dev/nvme-fabrics", Err: errno}, "")
		if errs.KindOf(err) != want.kind || !errors.Is(err, errno) || !strings.Contains(err.Error(), want.word) {
			t.Errorf("%v: %v; want kind %q, with %q", errno, err, want.kind, want.word)
		}
	}
}

// A kernel that ignores a key has connected without it.
func TestIgnored(t *testing.T) {
	c := connection()
	c.Key, c.PSK = "DHHC-1:00:a:", &PSK{}
	for _, s := range []struct {
		have Controller
		word string
	}{
		{Controller{Authenticated: true, TLS: true}, ""},
		{Controller{TLS: true}, "CONFIG_NVME_HOST_AUTH"},
		{Controller{Authenticated: true}, "CONFIG_NVME_TCP_TLS"},
	} {
		if err := c.ignored(s.have); (err == nil) != (s.word == "") || err != nil && !strings.Contains(err.Error(), s.word) {
			t.Errorf("%+v: %v, want %q", s.have, err, s.word)
		}
	}
}
