package dputest_test

import (
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cleatproject/cleat/api/dpf/storage/v1"
)

func identityMutants() map[string]mutant {
	type info = storagev1.GetPluginInfoResponse
	type probe = storagev1.ProbeResponse
	type capabilities = storagev1.StoragePluginGetCapabilitiesResponse
	type provider = storagev1.GetSNAPProviderResponse
	return map[string]mutant{
		"never ready":                  {"Ready", reply(func(p *probe) { p.Ready = wrapperspb.Bool(false) })},
		"ready unset":                  {"Ready", reply(func(p *probe) { p.Ready = nil })},
		"probe fails":                  {"Ready", recode[storagev1.ProbeRequest](codes.OK, codes.FailedPrecondition)},
		"probe is unavailable":         {"Ready", recode[storagev1.ProbeRequest](codes.OK, codes.Unavailable)},
		"no name":                      {"PluginInfo", reply(func(i *info) { i.Name = "" })},
		"name of 64 characters":        {"PluginInfo", reply(func(i *info) { i.Name = strings.Repeat("n", 64) })},
		"name is no domain name":       {"PluginInfo", reply(func(i *info) { i.Name = "example_vendor/plugin" })},
		"name with an empty label":     {"PluginInfo", reply(func(i *info) { i.Name = "example..vendor" })},
		"name with a hyphen at an end": {"PluginInfo", reply(func(i *info) { i.Name = "vendor-.example" })},
		"no version":                   {"PluginInfo", reply(func(i *info) { i.VendorVersion = "" })},
		"no manifest":                  {"PluginInfo", reply(func(i *info) { i.Manifest = nil })},
		"info changes":                 {"PluginInfo", once(func(i *info) { i.VendorVersion = "0.9" })},
		"info is unavailable":          {"PluginInfo", recode[storagev1.GetPluginInfoRequest](codes.OK, codes.Unavailable)},
		"announces the unspecified":    {"Capabilities", reply(func(c *capabilities) { c.Capabilities[0].GetRpc().Type = 0 })},
		"announces the unknown":        {"Capabilities", reply(func(c *capabilities) { c.Capabilities[0].GetRpc().Type = 7 })},
		"announces no type":            {"Capabilities", reply(func(c *capabilities) { c.Capabilities[0].Type = nil })},
		"announces less":               {"Capabilities", reply(func(c *capabilities) { c.Capabilities = c.Capabilities[1:] })},
		"announces by chance":          {"Capabilities", once(func(c *capabilities) { c.Capabilities = c.Capabilities[1:] })},
		"serves what it hides":         {"Served", reply(func(c *capabilities) { c.Capabilities = c.Capabilities[:2] })},
		"hides create":                 {"Served", reply(func(c *capabilities) { c.Capabilities = c.Capabilities[2:] })},
		"announces create in vain":     {"Served", recode[createRequest](codes.FailedPrecondition, codes.Unimplemented)},
		"announces delete in vain":     {"Served", recode[deleteRequest](codes.OK, codes.Unimplemented)},
		"announces get in vain":        {"Served", recode[getRequest](codes.NotFound, codes.Unimplemented)},
		"announces list in vain":       {"Served", recode[listRequest](codes.OK, codes.Unimplemented)},
		"answers all calls":            {"Served", nil}, // unknownCalls breaks it
		"provider is a path":           {"Provider", reply(func(p *provider) { p.ProviderName = "../default" })},
		"provider changes":             {"Provider", once(func(p *provider) { p.ProviderName = "" })},
		"provider fails":               {"Provider", recode[storagev1.GetSNAPProviderRequest](codes.OK, codes.FailedPrecondition)},
	}
}

// once changes the second reply only; the first is what the suite asks for to
// know its way, or what it compares with.
func once[R any](change func(*R)) breaking {
	return func(r *reference) around {
		var calls int
		var mu sync.Mutex
		return reply(func(out *R) {
			mu.Lock()
			defer mu.Unlock()
			if calls++; calls == 2 {
				change(out)
			}
		})(r)
	}
}
