package spdk

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/errs"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume/access"
)

// Parameters of a StorageClass. Those of QoS have the names that simplyblock's
// driver uses, and can be changed (VolumeAttributesClass).
const (
	keyTarget  = "target"
	keyStore   = "lvolStore"
	keyThin    = "thinProvision"
	keyClear   = "clearMethod"
	keyOldData = "allowOldData"
	keyIOPS    = "qos_rw_iops"
	keyMBytes  = "qos_rw_mbytes"
	keyReadMB  = "qos_r_mbytes"
	keyWriteMB = "qos_w_mbytes"
	// Those of keys have the names of the volume context.
	keyDHChap      = "dhchapKey"
	keyDHChapCtrlr = "dhchapCtrlrKey"
	keyTLS         = "tlsKey"
	defaultClear   = "unmap"
)

func mutableKeys() []string { return []string{keyReadMB, keyIOPS, keyMBytes, keyWriteMB} }

func parameterKeys() []string {
	return slices.Sorted(slices.Values(append(mutableKeys(), keyTarget, keyStore, keyThin, keyClear, keyOldData, keyDHChap, keyDHChapCtrlr, keyTLS)))
}

type settings struct {
	target, store string // empty: any
	thin          bool
	clear         string
	oldData       bool              // data of deleted volumes can show
	tls           bool              // hosts connect with TLS alone
	attributes    map[string]string // the mutable parameters
}

func parseSettings(parameters map[string]string) (settings, error) {
	s := settings{thin: true, clear: defaultClear, attributes: map[string]string{}}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if err := s.set(key, parameters[key]); err != nil {
			return settings{}, err
		}
	}
	if parameters[keyDHChapCtrlr] != "" && parameters[keyDHChap] == "" {
		return settings{}, errs.Errorf(errs.Invalid, "%s requires %s: the target authenticates only to an authenticated host", keyDHChapCtrlr, keyDHChap)
	}
	return s, nil
}

func (s *settings) set(key, value string) (err error) {
	switch key {
	case keyTarget:
		s.target = value
	case keyStore:
		s.store = value
	case keyThin:
		if s.thin, err = strconv.ParseBool(value); err != nil {
			return errs.Errorf(errs.Invalid, "%s %s is neither true nor false", key, errs.Quote(value))
		}
	case keyOldData:
		if s.oldData, err = strconv.ParseBool(value); err != nil {
			return errs.Errorf(errs.Invalid, "%s %s is neither true nor false", key, errs.Quote(value))
		}
	case keyClear:
		if value != "unmap" && value != "write_zeroes" {
			return errs.Errorf(errs.Invalid, "%s %s is not possible; use unmap, or write_zeroes for a device whose discarded blocks do not read as zeros", key, errs.Quote(value))
		}
		s.clear = value
	case keyDHChap, keyDHChapCtrlr, keyTLS:
		if !access.IsKeyName(value) { // it can be the key
			return errs.Errorf(errs.Invalid, "%s is not the name of a key (its %d characters are not shown); use up to 63 letters, digits, dots, dashes and underscores: nodes have a file of this name in --nvme-key-dir, and targets an entry of their keyring for each host, with a dot and the host ID after the name", key, len(value))
		}
		s.tls = s.tls || key == keyTLS
	default:
		return s.setAttribute(key, value, parameterKeys())
	}
	return nil
}

func (s *settings) setAttribute(key, value string, known []string) error {
	if !slices.Contains(mutableKeys(), key) {
		if near := errs.Nearest(key, known); near != "" {
			return errs.Errorf(errs.Invalid, "parameter %s is not known; did you mean %s?", errs.Quote(key), near)
		}
		return errs.Errorf(errs.Invalid, "parameter %s is not known; known are %s", errs.Quote(key), strings.Join(known, ", "))
	}
	if _, err := parseLimit(key, value); err != nil {
		return err
	}
	s.attributes[key] = value
	return nil
}

// maxLimit keeps limits in bytes within 64 bits.
const maxLimit = 1 << 40

func parseLimit(key, value string) (int64, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 || n > maxLimit {
		return 0, errs.Errorf(errs.Invalid, "%s %s is not a limit; use a number, or 0 for none", key, errs.Quote(value))
	}
	return n, nil
}

// parseAttributes validates the parameters of a change.
func parseAttributes(parameters map[string]string) (map[string]string, error) {
	s := settings{attributes: map[string]string{}}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if err := s.setAttribute(key, parameters[key], mutableKeys()); err != nil {
			return nil, err
		}
	}
	return s.attributes, nil
}

// qosOf returns the limits of valid attributes.
func qosOf(attributes map[string]string) (q rpc.QoS) {
	for key, into := range map[string]*int64{keyIOPS: &q.IOPS, keyMBytes: &q.MBytes, keyReadMB: &q.ReadMBytes, keyWriteMB: &q.WriteMBytes} {
		if value := attributes[key]; value != "" {
			*into, _ = parseLimit(key, value)
		}
	}
	return q
}
