package dputest_test

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

// movingOn gives the page after it to who asks for a page a third time: the
// first is the walk through all pages.
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

// remembering tells of devices until the next create, deleted or not.
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

// fragile does not know where it was when that device is gone.
func fragile(r *reference, _ context.Context, q *listRequest, next func() (*listReply, error)) (*listReply, error) {
	id, _ := strings.CutPrefix(q.StartingToken, tokenPrefix)
	if _, found := r.device(id); q.StartingToken != "" && !found {
		return nil, refuse("the list has changed")
	}
	return next()
}
