package request

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/volume"
)

// ParseDelete checks a DeleteDevice. Errors: volume.Invalid.
func ParseDelete(r *storagev1.DeleteDeviceRequest) (Device, error) {
	return parseDevice(r.GetVolumeId(), r.GetDeviceName())
}

// ParseGet checks a GetDevice. Errors: volume.Invalid.
func ParseGet(r *storagev1.GetDeviceRequest) (Device, error) {
	return parseDevice(r.GetVolumeId(), r.GetDeviceName())
}

// parseDevice leaves a name as it is: one that fits no device finds none.
func parseDevice(id, name string) (Device, error) {
	if err := CheckVolume(id); err != nil {
		return Device{}, err
	}
	return Device{Volume: id, Name: name}, nil
}

// ErrToken: a starting_token was not given by this plugin.
var ErrToken = errors.New("starting_token is none that ListDevices gave")

// maxPage is how many devices one answer holds at most, so that it stays well
// below the 4 MiB that a client takes.
const maxPage = 4096

// ParsePage checks a ListDevices. Errors: volume.Invalid, and ErrToken as well
// for a token that is none.
func ParsePage(r *storagev1.ListDevicesRequest) (Page, error) {
	p := Page{Max: int(r.GetMaxEntries())}
	switch {
	case p.Max < 0:
		return Page{}, volume.Errorf(volume.Invalid, "max_entries %d is negative; 0 is all that one answer holds", p.Max)
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

// Token is what continues a list behind a volume. It stays good when that
// volume goes, and over restarts.
func Token(after string) string {
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(after)))
	return base64.RawURLEncoding.EncodeToString(append(sum, after...))
}

func parseToken(token string) (string, error) {
	const most = math.MaxUint16
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if len(token) > most || err != nil || len(raw) < 5 || binary.BigEndian.Uint32(raw) != crc32.ChecksumIEEE(raw[4:]) {
		return "", volume.Errorf(volume.Invalid, "%w: %.64q; begin again without one", ErrToken, token)
	}
	return string(raw[4:]), nil
}
