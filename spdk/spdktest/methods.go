package spdktest

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Error of JSON-RPC.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func invalidRequest() *Error { return &Error{Code: -32600, Message: "Invalid request"} }

func errno(n int) *Error { return &Error{Code: -n, Message: strerror(n)} }

func textError(code, n int) *Error { return &Error{Code: code, Message: strerror(n)} }

const (
	invalidParams = -32602
	internalError = -32603
)

const (
	ePERM     = 1
	eNOENT    = 2
	eIO       = 5
	eNXIO     = 6
	eAGAIN    = 11
	eNOMEM    = 12
	eACCES    = 13
	eBUSY     = 16
	eEXIST    = 17
	eNODEV    = 19
	eINVAL    = 22
	eNOSPC    = 28
	eRANGE    = 34
	eTIMEDOUT = 110
	eALREADY  = 114
	eNOKEY    = 126
)

func strerror(n int) string {
	switch n {
	case ePERM:
		return "Operation not permitted"
	case eNOENT:
		return "No such file or directory"
	case eIO:
		return "Input/output error"
	case eNXIO:
		return "No such device or address"
	case eAGAIN:
		return "Resource temporarily unavailable"
	case eNOMEM:
		return "Cannot allocate memory"
	case eACCES:
		return "Permission denied"
	case eBUSY:
		return "Device or resource busy"
	case eEXIST:
		return "File exists"
	case eNODEV:
		return "No such device"
	case eINVAL:
		return "Invalid argument"
	case eNOSPC:
		return "No space left on device"
	case eRANGE:
		return "Numerical result out of range"
	case eTIMEDOUT:
		return "Connection timed out"
	case eALREADY:
		return "Operation already in progress"
	case eNOKEY:
		return "Required key not available"
	}
	return "Unknown error"
}

type kind int

const (
	text kind = iota
	number
	signed
	flag
	object
	list
	anything
)

// takes are a method's parameters; those in need are required.
type takes struct {
	allowed map[string]kind
	need    []string
}

func (t takes) and(more map[string]kind) takes {
	all := maps.Clone(t.allowed)
	maps.Copy(all, more)
	return takes{all, t.need}
}

func needs(allowed map[string]kind, need ...string) takes { return takes{allowed, need} }

type phase int

const (
	runtime phase = iota
	startup
	always
)

type method struct {
	run   func(p *Process, ctx context.Context, a args) (any, *Error) // nil: listed only
	takes takes
	when  phase
	bad   *Error // response to invalid parameters; nil: that of the method's family
}

func (m method) refusal(name string) *Error {
	switch {
	case m.bad != nil:
		return m.bad
	case strings.HasPrefix(name, "nvmf_"):
		return &Error{Code: invalidParams, Message: "Invalid parameters"}
	case strings.HasPrefix(name, "fsdev_"):
		return &Error{Code: invalidParams, Message: "spdk_json_decode_object failed"}
	}
	return &Error{Code: internalError, Message: "spdk_json_decode_object failed"}
}

func (p *Process) phase(m method) *Error {
	switch {
	case m.when == runtime && !p.initialised:
		return &Error{Code: -1, Message: "Method may only be called after framework is initialized using framework_start_init RPC."}
	case m.when == startup && p.initialised:
		return &Error{Code: -1, Message: "Method may only be called before framework is initialized. Use --wait-for-rpc command line parameter and then issue this RPC before the framework_start_init RPC."}
	}
	return nil
}

type args map[string]json.RawMessage

// decode refuses unknown, mistyped and missing parameters, as SPDK does.
func decode(params json.RawMessage, t takes) (args, bool) {
	a := args{}
	if len(params) > 0 && string(params) != "null" {
		if err := json.Unmarshal(params, &a); err != nil {
			return nil, false
		}
	}
	for name, value := range a {
		k, known := t.allowed[name]
		if !known || !k.fits(value) {
			return nil, false
		}
	}
	for _, name := range t.need {
		if !a.has(name) {
			return nil, false
		}
	}
	return a, true
}

func (k kind) fits(v json.RawMessage) bool {
	var into any
	switch k {
	case text:
		into = new(string)
	case number:
		into = new(uint64)
	case signed:
		into = new(int64)
	case flag:
		into = new(bool)
	case object:
		into = new(map[string]json.RawMessage)
	case list:
		into = new([]json.RawMessage)
	case anything:
		return true
	}
	return !bytes.Equal(v, null()) && json.Unmarshal(v, into) == nil
}

func (a args) has(name string) bool { _, there := a[name]; return there }

// decode has checked the types, so these methods cannot fail.

func (a args) text(name string) (v string)   { _ = json.Unmarshal(a[name], &v); return v }
func (a args) number(name string) (v uint64) { _ = json.Unmarshal(a[name], &v); return v }
func (a args) signed(name string) (v int64)  { _ = json.Unmarshal(a[name], &v); return v }
func (a args) flag(name string) (v bool)     { _ = json.Unmarshal(a[name], &v); return v }

//go:embed methods.txt
var recordedMethods string

// methodsOf returns the methods, and their order in rpc_get_methods: those of
// the recorded process with the changes of c.
func methodsOf(c Config) (map[string]method, []string) {
	listed := strings.Fields(recordedMethods)
	if c.Flavour == Fork {
		listed = slices.DeleteFunc(listed, func(name string) bool {
			return strings.HasPrefix(name, "keyring_") || name == "bdev_nvme_set_keys" || name == "nvmf_subsystem_set_keys"
		})
		listed = append(listed, "fsdev_get_fsdevs")
	}
	if c.RBD {
		listed = append(listed, slices.Sorted(maps.Keys(rbdMethods()))...)
	}
	known := map[string]method{}
	for _, table := range []map[string]method{
		frameworkMethods(), bdevMethods(), rbdMethods(), lvolMethods(), initiatorMethods(c.Flavour),
		targetMethods(), fsdevMethods(), keyringMethods(),
	} {
		maps.Copy(known, table)
	}
	if c.SNAP {
		shown := snapMethods(c.Envelope)
		maps.Copy(known, shown)
		listed = append(listed, slices.Sorted(maps.Keys(shown))...)
	}
	listed = slices.DeleteFunc(listed, func(name string) bool { return slices.Contains(c.Without, name) })
	methods := map[string]method{}
	for _, name := range listed {
		methods[name] = known[name]
	}
	return methods, listed
}
