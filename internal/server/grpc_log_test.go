package server

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/grpclog"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestLinesOfTheGRPCLibraryAreLogged(t *testing.T) {
	var out bytes.Buffer
	lines := grpcLines{testkit.Value(NewLogger(&out, "text", "info"))(t)}
	grpclog.NewLoggerV2(io.Discard, io.Discard, lines).Error(`[transport] GoAway: "too_many_pings"`)
	if got := out.String(); strings.Count(got, "\n") != 1 ||
		!strings.Contains(got, `level=WARN msg="gRPC connection failed" err="[transport] GoAway: \"too_many_pings\""`) {
		t.Errorf("logged %q", got)
	}
}
