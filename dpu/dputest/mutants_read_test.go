package dputest_test

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
)

func listMutants() map[string]mutant {
	return map[string]mutant{
		"max_entries is ignored":         {"Block/Pages", request(func(_ *reference, q *listRequest) { q.MaxEntries = 0 })},
		"pages are one too long":         {"Block/Pages", request(longer)},
		"pages skip one":                 {"Block/Pages", listing(skipping)},
		"pages overlap":                  {"Block/Pages", listing(overlapping)},
		"pages never end":                {"Block/Pages", reply(func(l *listReply) { l.NextToken = or(l.NextToken, tokenPrefix) })},
		"pages never end while deleting": {"Block/PagesWhileDeleting", reply(func(l *listReply) { l.NextToken = or(l.NextToken, tokenPrefix) })},
		"only the first page":            {"Block/Pages", reply(func(l *listReply) { l.NextToken = "" })},
		"tokens are used up":             {"Block/Pages", usedUp},
		"tokens move on":                 {"Block/Pages", movingOn},
		"bad token: from the beginning":  {"Block/BadTokens", request(forgiving)},
		"bad token: INVALID_ARGUMENT":    {"Block/BadTokens", recode[listRequest](codes.Aborted, codes.InvalidArgument)},
		"bad token: FAILED_PRECONDITION": {"Block/BadTokens", recode[listRequest](codes.Aborted, codes.FailedPrecondition)},
		"bad token: nothing":             {"Block/BadTokens", listing(emptyPage)},
		"fewer than none: OUT_OF_RANGE":  {"Block/BadTokens", listing(negative)},
		"names are not listed":           {"Block/List Block/Create", reply(func(l *listReply) { unname(l) })},
		"one is not listed":              {"Block/List", reply(func(l *listReply) { l.Entries = l.Entries[min(1, len(l.Entries)):] })},
		"one is listed twice":            {"Block/List Block/Create", reply(func(l *listReply) { l.Entries = append(l.Entries, l.Entries...) })},
		"the deleted are listed":         {"Block/PagesWhileDeleting Block/List", remembering},
		"a changed list fails":           {"Block/PagesWhileDeleting", listing(fragile)},
	}
}

func longer(_ *reference, q *listRequest) {
	if q.MaxEntries > 0 {
		q.MaxEntries++
	}
}

func skipping(_ *reference, _ context.Context, q *listRequest, next func() (*listReply, error)) (*listReply, error) {
	out, err := next()
	if q.StartingToken != "" && err == nil && len(out.Entries) > 1 {
		out.Entries = out.Entries[1:]
	}
	return out, err
}

func overlapping(r *reference, ctx context.Context, q *listRequest, _ func() (*listReply, error)) (*listReply, error) {
	out, err := r.ListDevices(ctx, q)
	if err == nil && out.NextToken != "" && len(out.Entries) > 1 {
		out.NextToken = tokenPrefix + out.Entries[len(out.Entries)-2].VolumeId
	}
	return out, err
}

func usedUp(r *reference) around {
	var mu sync.Mutex
	used := map[string]bool{}
	return listing(func(_ *reference, _ context.Context, q *listRequest, next func() (*listReply, error)) (*listReply, error) {
		mu.Lock()
		defer mu.Unlock()
		if q.MaxEntries == 2 && used[q.StartingToken] && q.StartingToken != "" {
			return nil, status.Error(codes.Aborted, "used")
		}
		used[q.StartingToken] = true
		return next()
	})(r)
}

// movingOn returns the next page on the third request: the first is from the
// walk through all pages.
func movingOn(r *reference) around {
	var mu sync.Mutex
	asked := map[string]int{}
	return listing(func(r *reference, ctx context.Context, q *listRequest, next func() (*listReply, error)) (*listReply, error) {
		mu.Lock()
		defer mu.Unlock()
		out, err := next()
		if err == nil && q.MaxEntries == 2 && q.StartingToken != "" && out.NextToken != "" {
			if asked[q.StartingToken]++; asked[q.StartingToken] == 3 {
				return r.ListDevices(ctx, &listRequest{MaxEntries: 2, StartingToken: out.NextToken})
			}
		}
		return out, err
	})(r)
}

func forgiving(_ *reference, q *listRequest) {
	if !strings.HasPrefix(q.StartingToken, tokenPrefix) {
		q.StartingToken = ""
	}
}

func emptyPage(_ *reference, _ context.Context, q *listRequest, next func() (*listReply, error)) (*listReply, error) {
	if q.StartingToken != "" && !strings.HasPrefix(q.StartingToken, tokenPrefix) {
		return &listReply{}, nil
	}
	return next()
}

func negative(_ *reference, _ context.Context, q *listRequest, next func() (*listReply, error)) (*listReply, error) {
	if q.MaxEntries < 0 {
		return nil, status.Error(codes.OutOfRange, "max_entries")
	}
	return next()
}

func unname(l *listReply) {
	for _, e := range l.Entries {
		e.DeviceName = ""
	}
}

// remembering lists devices until the next create, even if deleted.
func remembering(r *reference) around {
	var mu sync.Mutex
	var known *listReply
	return func(ctx context.Context, req any, next grpc.UnaryHandler) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		q, isList := req.(*listRequest)
		if _, isCreate := req.(*createRequest); isCreate {
			known = nil
		}
		if !isList {
			return next(ctx, req)
		}
		if known == nil {
			all, err := r.ListDevices(ctx, &listRequest{})
			if err != nil {
				return nil, err
			}
			known = all
		}
		out := &listReply{}
		after := strings.TrimPrefix(q.StartingToken, tokenPrefix)
		for _, e := range known.Entries {
			if q.MaxEntries > 0 && len(out.Entries) == int(q.MaxEntries) {
				out.NextToken = tokenPrefix + out.Entries[len(out.Entries)-1].VolumeId
				break
			}
			if e.VolumeId > after {
				out.Entries = append(out.Entries, e)
			}
		}
		return out, nil
	}
}

// fragile fails if the token's device was deleted.
func fragile(r *reference, _ context.Context, q *listRequest, next func() (*listReply, error)) (*listReply, error) {
	id, _ := strings.CutPrefix(q.StartingToken, tokenPrefix)
	if _, found := r.device(id); q.StartingToken != "" && !found {
		return nil, refuse("the list has changed")
	}
	return next()
}

func getMutants() map[string]mutant {
	return map[string]mutant{
		"absent is FAILED_PRECONDITION": {"Block/GetAbsent", recode[getRequest](codes.NotFound, codes.FailedPrecondition)},
		"absent is UNAVAILABLE":         {"Block/GetAbsent Block/Delete", recode[getRequest](codes.NotFound, codes.Unavailable)},
		"everything is there":           {"Block/GetAbsent", recodeToOK},
		"found by the volume alone":     {"Block/GetAbsent", request(anyName)},
		"found by the name alone":       {"Block/GetAbsent", request(anyVolume)},
		"found without a volume":        {"Block/GetAbsent", request(noVolume)},
		"access modes are missing":      {"Block/Get Block/Create", reply(func(g *getReply) { g.AccessModes = nil })},
		"one access mode is returned":   {"Block/Get", reply(func(g *getReply) { g.AccessModes = g.AccessModes[:1] })},
		"volume mode is missing":        {"Block/Get", reply(func(g *getReply) { g.VolumeMode = "" })},
		"volume mode is wrong":          {"Filesystem/Get Filesystem/DefaultVolumeMode", reply(func(g *getReply) { g.VolumeMode = "Block" })},
		"found once":                    {"Block/Get", forgetful},
	}
}

func recodeToOK(*reference) around {
	return func(ctx context.Context, req any, next grpc.UnaryHandler) (any, error) {
		out, err := next(ctx, req)
		if _, fits := req.(*getRequest); fits && err != nil {
			return &getReply{}, nil
		}
		return out, err
	}
}

func anyName(r *reference, q *getRequest) {
	if d, found := r.device(q.VolumeId); found {
		q.DeviceName = d.name
	}
}

func anyVolume(r *reference, q *getRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, d := range r.devices {
		if d.name == q.DeviceName {
			q.VolumeId = id
		}
	}
}

func noVolume(r *reference, q *getRequest) {
	if q.VolumeId == "" {
		anyVolume(r, q)
	}
}

// forgetful finds each device only once.
func forgetful(r *reference) around {
	var mu sync.Mutex
	returned := map[string]bool{}
	return instead(func(_ *reference, _ context.Context, q *getRequest, next func() (*getReply, error)) (*getReply, error) {
		mu.Lock()
		defer mu.Unlock()
		if returned[q.DeviceName] {
			return nil, status.Error(codes.NotFound, "forgotten")
		}
		returned[q.DeviceName] = true
		return next()
	})(r)
}

func identityMutants() map[string]mutant {
	type info = storagev1.GetPluginInfoResponse
	type probe = storagev1.ProbeResponse
	type capabilities = storagev1.StoragePluginGetCapabilitiesResponse
	type provider = storagev1.GetSNAPProviderResponse
	return map[string]mutant{
		"never ready":                         {"Ready", reply(func(p *probe) { p.Ready = wrapperspb.Bool(false) })},
		"ready unset":                         {"Ready", reply(func(p *probe) { p.Ready = nil })},
		"probe fails":                         {"Ready", recode[storagev1.ProbeRequest](codes.OK, codes.FailedPrecondition)},
		"probe is unavailable":                {"Ready", recode[storagev1.ProbeRequest](codes.OK, codes.Unavailable)},
		"no name":                             {"PluginInfo", reply(func(i *info) { i.Name = "" })},
		"name of 64 characters":               {"PluginInfo", reply(func(i *info) { i.Name = strings.Repeat("n", 64) })},
		"name is no domain name":              {"PluginInfo", reply(func(i *info) { i.Name = "example_vendor/plugin" })},
		"name with an empty label":            {"PluginInfo", reply(func(i *info) { i.Name = "example..vendor" })},
		"name with a hyphen at an end":        {"PluginInfo", reply(func(i *info) { i.Name = "vendor-.example" })},
		"no version":                          {"PluginInfo", reply(func(i *info) { i.VendorVersion = "" })},
		"no manifest":                         {"PluginInfo", reply(func(i *info) { i.Manifest = nil })},
		"info changes":                        {"PluginInfo", once(func(i *info) { i.VendorVersion = "0.9" })},
		"info is unavailable":                 {"PluginInfo", recode[storagev1.GetPluginInfoRequest](codes.OK, codes.Unavailable)},
		"announces the unspecified":           {"Capabilities", reply(func(c *capabilities) { c.Capabilities[0].GetRpc().Type = 0 })},
		"announces the unknown":               {"Capabilities", reply(func(c *capabilities) { c.Capabilities[0].GetRpc().Type = 7 })},
		"announces no type":                   {"Capabilities", reply(func(c *capabilities) { c.Capabilities[0].Type = nil })},
		"announces less":                      {"Capabilities", reply(func(c *capabilities) { c.Capabilities = c.Capabilities[1:] })},
		"announces by chance":                 {"Capabilities", once(func(c *capabilities) { c.Capabilities = c.Capabilities[1:] })},
		"serves what it hides":                {"Served", reply(func(c *capabilities) { c.Capabilities = c.Capabilities[:2] })},
		"hides create":                        {"Served", reply(func(c *capabilities) { c.Capabilities = c.Capabilities[2:] })},
		"announces create without serving it": {"Served", recode[createRequest](codes.FailedPrecondition, codes.Unimplemented)},
		"announces delete without serving it": {"Served", recode[deleteRequest](codes.OK, codes.Unimplemented)},
		"announces get without serving it":    {"Served", recode[getRequest](codes.NotFound, codes.Unimplemented)},
		"announces list without serving it":   {"Served", recode[listRequest](codes.OK, codes.Unimplemented)},
		"answers all calls":                   {"Served", nil}, // unknownCalls breaks it
		"provider is a path":                  {"Provider", reply(func(p *provider) { p.ProviderName = "../default" })},
		"provider changes":                    {"Provider", once(func(p *provider) { p.ProviderName = "" })},
		"provider fails":                      {"Provider", recode[storagev1.GetSNAPProviderRequest](codes.OK, codes.FailedPrecondition)},
	}
}

// once changes the second reply only; the first is for discovery or comparison.
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
