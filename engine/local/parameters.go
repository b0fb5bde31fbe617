package local

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/poolfile"
)

// also in Volume.Attributes
const (
	keyProvisioning = "provisioning"
	keyTrimInterval = "trimInterval"
	keyReadAhead    = "readAheadKiB"
	keyConsistency  = "consistency" // of groups
)

const (
	thin  = poolfile.Thin
	thick = poolfile.Thick
)

const (
	minTrimInterval = time.Minute
	maxReadAhead    = 1 << 20 // KiB
)

// settings are in canonical form; empty: not set.
type settings struct {
	Provisioning string `json:"provisioning"`
	TrimInterval string `json:"trimInterval,omitempty"` // Go duration, "0": off
	ReadAhead    string `json:"readAheadKiB,omitempty"`
}

func (s settings) thick() bool { return s.Provisioning == thick }

func (s settings) parameters() map[string]string {
	all := map[string]string{keyProvisioning: s.Provisioning, keyTrimInterval: s.TrimInterval, keyReadAhead: s.ReadAhead}
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return all
}

func parameterKeys() []string { return []string{keyProvisioning, keyReadAhead, keyTrimInterval} }

// parseSettings applies parameters to base. Invalid: a parameter is wrong, and
// none is applied.
func parseSettings(base settings, parameters map[string]string) (settings, error) {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if err := base.set(key, parameters[key]); err != nil {
			return settings{}, err
		}
	}
	return base, nil
}

func (s *settings) set(key, value string) (err error) {
	switch key {
	case keyProvisioning:
		s.Provisioning, err = parseProvisioning(value)
	case keyTrimInterval:
		s.TrimInterval, err = parseTrimInterval(value)
	case keyReadAhead:
		s.ReadAhead, err = parseReadAhead(value)
	default:
		return unknownValue("parameter", key, parameterKeys())
	}
	return err
}

func parseProvisioning(value string) (string, error) {
	if value != thin && value != thick {
		return "", unknownValue("value of "+keyProvisioning, value, []string{thin, thick})
	}
	return value, nil
}

func parseTrimInterval(value string) (string, error) {
	d, err := time.ParseDuration(value)
	if err != nil {
		return "", errs.Errorf(errs.Invalid, "%s %q is not a duration; use for example 24h or 30m, or 0 for off", keyTrimInterval, value)
	}
	if d == 0 {
		return "0", nil
	}
	if d < minTrimInterval {
		return "", errs.Errorf(errs.Invalid, "%s %q is too short: at least %s, or 0 for off", keyTrimInterval, value, minTrimInterval)
	}
	return d.String(), nil
}

func parseReadAhead(value string) (string, error) {
	kib, err := strconv.ParseUint(value, 10, 31)
	if err != nil || kib > maxReadAhead {
		return "", errs.Errorf(errs.Invalid, "%s %q is not a number of KiB from 0 to %d", keyReadAhead, value, maxReadAhead)
	}
	return strconv.FormatUint(kib, 10), nil
}

// unknownValue names the known values or the most likely one.
func unknownValue(what, word string, known []string) error {
	if near := errs.Nearest(word, known); near != "" {
		return errs.Errorf(errs.Invalid, "%s %q is not known; did you mean %q?", what, word, near)
	}
	return errs.Errorf(errs.Invalid, "%s %q is not known; known are %s", what, word, strings.Join(known, ", "))
}

func parseConsistency(parameters map[string]string) (allowCrashConsistent bool, err error) {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		value := parameters[key]
		switch {
		case key != keyConsistency:
			return false, unknownValue("parameter of a group", key, []string{keyConsistency})
		case value == "member":
			allowCrashConsistent = true
		case value != "group":
			return false, unknownValue("value of "+keyConsistency, value, []string{"group", "member"})
		}
	}
	return allowCrashConsistent, nil
}

func noParameters(parameters map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		return errs.Errorf(errs.Invalid, "parameter %q is not known; snapshots have no parameters", key)
	}
	return nil
}
