package testkit

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"testing"
)

// KubeToken is the token in a kubeconfig of WriteKubeconfig.
const KubeToken = "secret"

// WriteKubeconfig writes a kubeconfig for a fake API server, which has TLS as
// clientcmd sends no tokens without, and returns its path.
func WriteKubeconfig(t testing.TB, server *httptest.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	ReplaceFile(t, path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: %q, certificate-authority-data: %s}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
users: [{name: test, user: {token: %s}}]
`, server.URL, base64.StdEncoding.EncodeToString(authority), KubeToken), 0o600)
	return path
}
