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

// ParseDelete checks a DeleteDeviceRequest. Errors: errs.Invalid.
func ParseDelete(r *storagev1.DeleteDeviceRequest) (Device, error) {
	return parseDevice(r.GetVolumeId(), r.GetDeviceName())
}

// ParseGet checks a GetDeviceRequest. Errors: errs.Invalid.
func ParseGet(r *storagev1.GetDeviceRequest) (Device, error) {
	return parseDevice(r.GetVolumeId(), r.GetDeviceName())
}

// parseDevice accepts any name, since an unknown one matches no device. But the
// name is logged, so it must not be a key, and its length is bounded.
func parseDevice(id, name string) (Device, error) {
	if err := CheckVolume(id); err != nil {
		return Device{}, err
	}
	switch {
	case len(name) > maxName:
		return Device{}, errs.Errorf(errs.Invalid, "device_name has %d bytes, at most %d are allowed", len(name), maxName)
	case access.LooksSecret(name):
		return Device{}, errs.Errorf(errs.Invalid, "device_name looks like an NVMe or Ceph key (not shown)")
	}
	return Device{Volume: id, Name: name}, nil
}

// maxName is above the length of any device name.
const maxName = 4096

// ErrToken: starting_token was not returned by this plugin.
var ErrToken = errors.New("starting_token was not returned by ListDevices")

// maxPage keeps a response well below the 4 MiB limit of gRPC clients.
const maxPage = 4096

// ParsePage checks a ListDevicesRequest. Errors: errs.Invalid, also ErrToken.
func ParsePage(r *storagev1.ListDevicesRequest) (Page, error) {
	p := Page{Max: int(r.GetMaxEntries())}
	switch {
	case p.Max < 0:
		return Page{}, errs.Errorf(errs.Invalid, "max_entries %d is negative; use 0 for the largest page", p.Max)
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

const checksum = crc32.Size

// Token continues a list after a volume. It stays valid over restarts and when
// that volume is deleted.
func Token(after string) string {
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(after)))
	return base64.RawURLEncoding.EncodeToString(append(sum, after...))
}

// parseToken accepts exactly what Token returns; the decoder would also accept
// line breaks.
func parseToken(token string) (after string, err error) {
	if len(token) > base64.RawURLEncoding.EncodedLen(checksum+maxVolume) {
		return "", errs.Errorf(errs.Invalid, "%w: it has %d bytes; start again without a token", ErrToken, len(token))
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil && len(raw) > checksum {
		after = string(raw[checksum:])
	}
	if CheckVolume(after) != nil || Token(after) != token {
		return "", errs.Errorf(errs.Invalid, "%w: %s; start again without a token", ErrToken, access.Quote(token))
	}
	return after, nil
}
