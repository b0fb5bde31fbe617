package request

import (
	"path"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// checkPathLimits admits what could be a path of any kind. It is enough for a
// path that is only compared with those on record.
func checkPathLimits(field, p string) error {
	if p == "" {
		return invalidf("%s is missing", field)
	}
	return checkString(field, p, MaxPath)
}

// checkPath admits an absolute path that means the same before and after
// cleaning. The root is refused too: nothing is ever mounted over it.
func checkPath(field, p string) error {
	if err := checkPathLimits(field, p); err != nil {
		return err
	}
	switch {
	case strings.ContainsRune(p, 0):
		return invalidf("%s %s holds a NUL", field, errs.Quote(p))
	case !path.IsAbs(p):
		return invalidf("%s %s is relative; an absolute path is needed", field, errs.Quote(p))
	case path.Clean(p) != p:
		return invalidf("%s %s is not a clean path; %s would be", field, errs.Quote(p), errs.Quote(path.Clean(p)))
	case p == "/":
		return invalidf("%s is the root directory, where nothing can be mounted", field)
	}
	for element := range strings.SplitSeq(p, "/") {
		if len(element) > maxPathElement {
			return invalidf("%s holds the name %s, at most %d bytes are possible", field, errs.Quote(element), maxPathElement)
		}
	}
	return nil
}

// checkOptionalPath is checkPath for a field that may be empty.
func checkOptionalPath(field, p string) error {
	if p == "" {
		return nil
	}
	return checkPath(field, p)
}
