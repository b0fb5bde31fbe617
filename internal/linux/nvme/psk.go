package nvme

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"hash/crc32"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// PSK is a configured pre-shared key of NVMe/TCP with TLS (NVMe/TCP Transport
// Specification, section 3.6.1).
type PSK struct {
	secret []byte
	// retained: the key is used for all hosts as it is.
	retained bool
}

const pskPrefix = "NVMeTLSkey-1:"

// ParsePSK parses the interchange format: NVMeTLSkey-1:HH:BASE64:, where HH is
// the hash of the derivation, and BASE64 has the key and its CRC-32. Errors do
// not have the key.
func ParsePSK(text string) (PSK, error) {
	rest, found := strings.CutPrefix(text, pskPrefix)
	if !found {
		return PSK{}, errs.Errorf(errs.Precondition, "is not a TLS key, which begins with %s", pskPrefix)
	}
	digest, rest, found := strings.Cut(rest, ":")
	encoded, ended := strings.CutSuffix(rest, ":")
	if !found || !ended {
		return PSK{}, errs.Errorf(errs.Precondition, "is not a TLS key: it does not have the form %sHH:BASE64:", pskPrefix)
	}
	data, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") {
		return PSK{}, errs.Errorf(errs.Precondition, "is not a TLS key: what follows the hash is not Base64")
	}
	size := len(data) - crc32.Size
	switch {
	case digest != "00" && digest != "01" && digest != "02":
		return PSK{}, errs.Errorf(errs.Precondition, "has a TLS key with an unknown hash; use 00, 01 (SHA-256) or 02 (SHA-384)")
	case size != sha256.Size && size != sha512.Size384 || digest == "01" && size != sha256.Size || digest == "02" && size != sha512.Size384:
		return PSK{}, errs.Errorf(errs.Precondition, "has a TLS key of %d bytes with the hash %s; SHA-256 (01) has 32 bytes, SHA-384 (02) 48, and 00 either", max(size, 0), digest)
	case crc32.ChecksumIEEE(data[:size]) != binary.LittleEndian.Uint32(data[size:]):
		return PSK{}, errs.Errorf(errs.Precondition, "has a damaged TLS key: its checksum (CRC-32) is wrong")
	}
	return PSK{data[:size], digest == "00"}, nil
}

// maxContext is the longest context of HKDF-Expand-Label.
const maxContext = 255

// pskIdentity is what the key is for, in the kernel and to the target. Version 0
// is understood by all kernels and by SPDK.
func pskIdentity(digest, hostNQN, nqn string) string {
	return "NVMe0R" + digest + " " + hostNQN + " " + nqn
}

// derive returns the TLS PSK of a host and a subsystem, and its identity.
func (p PSK) derive(hostNQN, nqn string) (identity string, key []byte, err error) {
	digest, newHash := "01", sha256.New
	if len(p.secret) == sha512.Size384 {
		digest, newHash = "02", sha512.New384
	}
	identity = pskIdentity(digest, hostNQN, nqn)
	if len(identity) > maxContext {
		return "", nil, errs.Errorf(errs.Unsupported, "the host NQN and the NQN of the subsystem have %d bytes, and TLS allows %d for both; use shorter ones", len(hostNQN)+len(nqn), maxContext-len(pskIdentity(digest, "", "")))
	}
	key = p.secret
	if !p.retained {
		if key, err = expandLabel(newHash, key, "HostNQN", hostNQN); err != nil {
			return "", nil, err
		}
	}
	key, err = expandLabel(newHash, key, "nvme-tls-psk", identity)
	return identity, key, err
}

// expandLabel is HKDF-Extract without salt and HKDF-Expand-Label (RFC 8446,
// section 7.1).
func expandLabel(newHash func() hash.Hash, secret []byte, label, context string) ([]byte, error) {
	prk, err := hkdf.Extract(newHash, secret, nil)
	if err != nil {
		return nil, err
	}
	label = "tls13 " + label
	info := binary.BigEndian.AppendUint16(nil, uint16(len(secret)))
	info = append(append(info, byte(len(label))), label...)
	info = append(append(info, byte(len(context))), context...)
	return hkdf.Expand(newHash, prk, string(info), len(secret))
}
