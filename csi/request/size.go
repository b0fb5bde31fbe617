package request

import (
	"math"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// parseRange translates a capacity range; one that is absent is no wish.
func parseRange(field string, r *csi.CapacityRange) (volume.SizeRange, error) {
	s := volume.SizeRange{Required: r.GetRequiredBytes(), Limit: r.GetLimitBytes()}
	switch {
	case r == nil:
		return volume.SizeRange{}, nil
	case s.Required < 0:
		return volume.SizeRange{}, invalidf("%s.required_bytes is %d; it cannot be negative", field, s.Required)
	case s.Limit < 0:
		return volume.SizeRange{}, invalidf("%s.limit_bytes is %d; it cannot be negative", field, s.Limit)
	case s.Required == 0 && s.Limit == 0:
		return volume.SizeRange{}, invalidf("%s holds neither required_bytes nor limit_bytes", field)
	case s.Limit != 0 && s.Limit < s.Required:
		return volume.SizeRange{}, invalidf("%s.limit_bytes %d is less than required_bytes %d", field, s.Limit, s.Required)
	}
	return s, nil
}

// parseQuantity reads a size as people write it in Kubernetes: a whole number
// of bytes with an optional suffix k, M, G, T, P, E or Ki, Mi, Gi, Ti, Pi, Ei.
func parseQuantity(field, s string) (int64, error) {
	digits := strings.TrimRight(s, "kKMGTPEi")
	n, err := strconv.ParseInt(digits, 10, 64)
	unit, known := unitOf(s[len(digits):])
	if err != nil || n <= 0 || !known {
		return 0, invalidf("%s %s is not a size; write for example 512Mi or 10Gi", field, errs.Quote(s))
	}
	if n > math.MaxInt64/unit {
		return 0, errs.Errorf(errs.OutOfRange, "%s %s is larger than any volume can be", field, errs.Quote(s))
	}
	return n * unit, nil
}

func unitOf(suffix string) (int64, bool) {
	switch suffix {
	case "":
		return 1, true
	case "k":
		return 1e3, true
	case "M":
		return 1e6, true
	case "G":
		return 1e9, true
	case "T":
		return 1e12, true
	case "P":
		return 1e15, true
	case "E":
		return 1e18, true
	case "Ki":
		return 1 << 10, true
	case "Mi":
		return 1 << 20, true
	case "Gi":
		return 1 << 30, true
	case "Ti":
		return 1 << 40, true
	case "Pi":
		return 1 << 50, true
	case "Ei":
		return 1 << 60, true
	}
	return 0, false
}
