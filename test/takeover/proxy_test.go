package takeover

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/cleatproject/cleat/test/fence/rig"
	"github.com/cleatproject/cleat/test/testkit"
)

// proxy is between a site's controllers and the API server. It counts requests,
// and can lose answers to writes that the API server has performed.
type proxy struct {
	mu       sync.Mutex
	requests map[string]int // by method and resource, such as "GET pods"
	lose     func() bool    // for a write; nil: never
}

// proxied lets controllers that start from now on use a proxy, with the rights of
// their account.
func (s *site) proxied() *proxy {
	s.t.Helper()
	p := &proxy{requests: map[string]int{}}
	config := api.Config(account)
	to := testkit.Value(url.Parse(config.Host))(s.t)
	forward := httputil.NewSingleHostReverseProxy(to)
	forward.Transport = testkit.Value(rest.TransportFor(config))(s.t)
	forward.ModifyResponse = func(r *http.Response) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if r.Request.Method != http.MethodGet && p.lose != nil && p.lose() {
			return fmt.Errorf("the answer is lost")
		}
		return nil
	}
	forward.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // as a lost connection
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.requests[r.Method+" "+resourceIn(r.URL.Path)]++
		p.mu.Unlock()
		forward.ServeHTTP(w, r)
	}))
	s.t.Cleanup(server.Close)
	s.kubeconfig = filepath.Join(rig.Dir(s.t), "kubeconfig-proxy")
	testkit.Must(s.t, os.WriteFile(s.kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: %q}}]
contexts: [{name: test, context: {cluster: test}}]
`, server.URL), 0o600))
	return p
}

// resourceIn returns the resource of an object's or list's path.
func resourceIn(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	skip := min(len(parts), 2) // api/v1
	if parts[0] == "apis" {
		skip = min(len(parts), 3)
	}
	if parts = parts[skip:]; len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) == 3 { // a subresource
		return parts[0] + "/" + parts[2]
	}
	return slices.Concat(parts, []string{""})[0]
}

// take returns the counts since the last call.
func (p *proxy) take() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.requests
	p.requests = map[string]int{}
	return taken
}

// loseAnswers loses answers to writes when a function says so; nil: none.
func (p *proxy) loseAnswers(lose func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = lose
}
