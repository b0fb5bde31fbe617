package request

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume/access"
)

// ParseDelete checks a DeleteDevice. Errors: errs.Invalid.
func ParseDelete(r *storagev1.DeleteDeviceRequest) (Device, error) {
	return parseDevice(r.GetVolumeId(), r.GetDeviceName())
}

// ParseGet checks a GetDevice. Errors: errs.Invalid.
func ParseGet(r *storagev1.GetDeviceRequest) (Device, error) {
	return parseDevice(r.GetVolumeId(), r.GetDeviceName())
}

// parseDevice leaves a name as it is, since one that fits no device finds none:
// but it stands in logs, so it is no key, and no longer than a name can be.
func parseDevice(id, name string) (Device, error) {
	if err := CheckVolume(id); err != nil {
		return Device{}, err
	}
	switch {
	case len(name) > maxName:
		return Device{}, errs.Errorf(errs.Invalid, "device_name has %d bytes, %d are possible", len(name), maxName)
	case access.LooksSecret(name):
		return Device{}, errs.Errorf(errs.Invalid, "device_name looks like a key of NVMe or Ceph (not shown)")
	}
	return Device{Volume: id, Name: name}, nil
}

// maxName is well above what any device can be called.
const maxName = 4096

// ErrToken: a starting_token was not given by this plugin.
var ErrToken = errors.New("starting_token is none that ListDevices gave")

// maxPage is how many devices one answer holds at most, so that it stays well
// below the 4 MiB that a client takes.
const maxPage = 4096

// ParsePage checks a ListDevices. Errors: errs.Invalid, and ErrToken as well
// for a token that is none.
func ParsePage(r *storagev1.ListDevicesRequest) (Page, error) {
	p := Page{Max: int(r.GetMaxEntries())}
	switch {
	case p.Max < 0:
		return Page{}, errs.Errorf(errs.Invalid, "max_entries %d is negative; 0 is all that one answer holds", p.Max)
	case p.Max == 0 || p.Max > maxPage:
		p.Max = maxPage
	}
	if r.GetStartingToken() != "" {
		var err error
		if p.After, err = parseToken(r.GetStartingToken()); err != nil {
			return Page{}, err
		}
	}
	return p, nil
}

// checksum is how many bytes it has in a token.
const checksum = crc32.Size

// Token is what continues a list behind a volume. It stays good when that
// volume goes, and over restarts.
func Token(after string) string {
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(after)))
	return base64.RawURLEncoding.EncodeToString(append(sum, after...))
}

// parseToken takes exactly what Token gave; the decoder alone would also take
// line breaks in it.
func parseToken(token string) (after string, err error) {
	if len(token) > base64.RawURLEncoding.EncodedLen(checksum+maxVolume) {
		return "", errs.Errorf(errs.Invalid, "%w: it has %d bytes; begin again without one", ErrToken, len(token))
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil && len(raw) > checksum {
		after = string(raw[checksum:])
	}
	if CheckVolume(after) != nil || Token(after) != token {
		return "", errs.Errorf(errs.Invalid, "%w: %s; begin again without one", ErrToken, access.Quote(token))
	}
	return after, nil
}
