package spdk

import (
	"regexp"
	"slices"
	"sync"
)

// JSON-RPC codes. The process also uses codeInvalidParams and codeInternal for
// its own errors, which only the text distinguishes.
const (
	codeMethodNotFound = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
	codeInvalidRequest = -32600
)

// meaningOf is a row of the table. Empty fields match everything.
type meaningOf struct {
	methods []string
	codes   []int
	text    *regexp.Regexp
	means   []Meaning
}

func (r meaningOf) fits(method string, code int, text string) bool {
	return (r.methods == nil || slices.Contains(r.methods, method)) &&
		(r.codes == nil || slices.Contains(r.codes, code)) &&
		(r.text == nil || r.text.MatchString(text))
}

// meanings returns those of the first matching row, nil for an ambiguous error,
// as -1 often is.
func meanings(method string, code int, text string) []Meaning {
	for _, r := range table() {
		if r.fits(method, code, text) {
			return r.means
		}
	}
	return nil
}

// table maps error responses to meanings, specific rows first. It is based on
// the responses of SPDK 26.09-pre and, where these could not be tested, on the
// sources of 23.09 to 26.01.
var table = sync.OnceValue(func() []meaningOf { return slices.Concat(particular(), general()) })

func particular() []meaningOf {
	const (
		attach = "bdev_nvme_attach_controller"
		detach = "bdev_nvme_detach_controller"
	)
	return []meaningOf{
		{methods: []string{attach}, codes: []int{-5}, means: []Meaning{Unreachable}},
		{methods: []string{attach}, codes: []int{-17}, means: []Meaning{Exists, OtherName}},
		{methods: []string{attach}, codes: []int{-19}, means: []Meaning{NoTransport}},
		{methods: []string{attach}, codes: []int{-34}, means: []Meaning{TooMany}},
		{methods: []string{attach}, codes: []int{-110}, means: []Meaning{Unreachable, TimedOut}},
		{methods: []string{attach}, codes: []int{-114}, text: regexp.MustCompile(`specified network path`), means: []Meaning{Exists, SamePath}},
		{methods: []string{attach}, codes: []int{-114}, means: []Meaning{Exists}},
		{methods: []string{attach}, codes: []int{-126}, means: []Meaning{NoKey}},
		{methods: []string{detach}, codes: []int{-6}, means: []Meaning{NotFound, NoPath}},
		{methods: []string{"bdev_nvme_get_controllers"}, codes: []int{-22}, text: regexp.MustCompile(`does not exist`), means: []Meaning{NotFound}},
		{methods: []string{"bdev_get_bdevs"}, codes: []int{-110}, means: []Meaning{NotFound, TimedOut}},
		{methods: []string{"nvmf_create_transport"}, codes: []int{codeInternal}, text: regexp.MustCompile(`\(-17\)$`), means: []Meaning{Exists}},
		{methods: []string{"bdev_rbd_get_clusters_info"}, codes: []int{-2}, means: []Meaning{NotFound}},
		{methods: []string{"keyring_file_remove_key"}, codes: []int{-2, -126}, means: []Meaning{NotFound}},
		{methods: []string{"keyring_file_add_key"}, codes: []int{-1, -13}, means: []Meaning{Denied}},
	}
}

func general() []meaningOf {
	word := regexp.MustCompile
	hidden := []int{codeInvalidParams, codeInternal} // only the text has the errno
	return []meaningOf{
		{codes: []int{codeMethodNotFound}, means: []Meaning{UnknownMethod}},
		{codes: []int{-1}, text: word(`only be called after framework`), means: []Meaning{NotReady, WrongState}},
		{codes: []int{-1}, text: word(`only be called before framework|not permitted with nvme controllers`), means: []Meaning{WrongState}},
		{codes: []int{-1}, text: word(`^Operation not permitted$`), means: []Meaning{Denied}},
		{codes: []int{-2}, means: []Meaning{NoFile}},
		{codes: []int{-6, -19}, means: []Meaning{NotFound}},
		{codes: []int{-11, -16}, means: []Meaning{Busy}},
		{codes: []int{-12, -28}, means: []Meaning{NoSpace}},
		{codes: []int{-13}, means: []Meaning{Denied}},
		{codes: []int{-17}, means: []Meaning{Exists}},
		{codes: []int{-22}, means: []Meaning{BadParams}},
		{codes: []int{-95}, means: []Meaning{Unsupported}},
		{codes: []int{-110}, means: []Meaning{TimedOut}},
		{codes: []int{-126}, means: []Meaning{NoKey}},
		{codes: hidden, text: word(`^File exists$|already exists`), means: []Meaning{Exists}},
		{codes: hidden, text: word(`^No such device$| not found$`), means: []Meaning{NotFound}},
		{codes: hidden, text: word(`^No such file or directory$`), means: []Meaning{NoFile}},
		{codes: hidden, text: word(`^No space left on device$|^Cannot allocate memory$`), means: []Meaning{NoSpace}},
		{codes: hidden, text: word(`^Operation not permitted$|^Permission denied$`), means: []Meaning{Denied}},
		{codes: hidden, text: word(`Resource temporarily unavailable$|^Device or resource busy$`), means: []Meaning{Busy}},
		{codes: hidden, text: word(`^spdk_json_decode_object failed$|^Invalid argument$|^Invalid transport type`), means: []Meaning{BadParams}},
		{codes: []int{codeInvalidRequest}, means: []Meaning{BadParams}},
	}
}
