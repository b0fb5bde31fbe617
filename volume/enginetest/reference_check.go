package enginetest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// As of the embedded engine, so that a StorageClass fits both.
const (
	parameterProvisioning = "provisioning" // thin or thick
	parameterTrimInterval = "trimInterval" // a duration; "0": off
	parameterReadAhead    = "readAheadKiB" // a number
)

func referenceParameters() []string {
	return []string{parameterProvisioning, parameterTrimInterval, parameterReadAhead}
}

func referenceDefaults() map[string]string {
	return map[string]string{parameterProvisioning: "thin", parameterTrimInterval: "0", parameterReadAhead: "128"}
}

func checkCreate(req volume.CreateRequest) (volume.CreateRequest, error) {
	if err := checkName(req.Name); err != nil {
		return req, err
	}
	if err := checkRange(req.Size); err != nil {
		return req, err
	}
	if req.Source.Volume != "" && req.Source.Snapshot != "" {
		return req, errs.Errorf(errs.Invalid, "the source is a volume or a snapshot, not both")
	}
	fsTypes := []string{"ext4", "xfs", "btrfs"}
	switch req.Content {
	case volume.Raw:
		if req.FSType != "" {
			return req, errs.Errorf(errs.Invalid, "a raw volume has no file system, but the request has %q", req.FSType)
		}
	case volume.Filesystem:
		if req.FSType == "" {
			req.FSType = fsTypes[0]
		}
		if !slices.Contains(fsTypes, req.FSType) {
			return req, errs.Errorf(errs.Invalid, "file system %q is not supported; supported are %s", req.FSType, strings.Join(fsTypes, ", "))
		}
	default:
		return req, errs.Errorf(errs.Invalid, "content %q is not valid in a request; valid are %q and %q", req.Content, volume.Raw, volume.Filesystem)
	}
	return req, checkParameters(req.Parameters)
}

func checkName(name string) error {
	if name == "" {
		return errs.Errorf(errs.Invalid, "the name is empty")
	}
	if len(name) > volume.MaxIDLength {
		return errs.Errorf(errs.Invalid, "the name is %d bytes long, at most %d are allowed", len(name), volume.MaxIDLength)
	}
	return nil
}

func checkRange(size volume.SizeRange) error {
	if size.Required < 0 || size.Limit < 0 {
		return errs.Errorf(errs.OutOfRange, "a size of %s is not possible: sizes are not negative", size)
	}
	if size.Limit != 0 && size.Limit < size.Required {
		return errs.Errorf(errs.OutOfRange, "the limit of %d bytes is below the required %d", size.Limit, size.Required)
	}
	return nil
}

func checkParameters(parameters map[string]string) error {
	for key, value := range parameters {
		if err := checkParameter(key, value); err != nil {
			return errs.Errorf(errs.Invalid, "parameter %s: %w", key, err)
		}
	}
	return nil
}

func checkParameter(key, value string) error {
	switch key {
	case parameterProvisioning:
		if value != "thin" && value != "thick" {
			return fmt.Errorf("%q is neither thin nor thick", value)
		}
	case parameterTrimInterval:
		if d, err := time.ParseDuration(value); err != nil || d < 0 {
			return fmt.Errorf("%q is not a duration such as 24h", value)
		}
	case parameterReadAhead:
		if _, err := strconv.ParseUint(value, 10, 24); err != nil {
			return fmt.Errorf("%q is not a number of KiB", value)
		}
	default:
		return fmt.Errorf("not known; known are %s", strings.Join(referenceParameters(), ", "))
	}
	return nil
}
