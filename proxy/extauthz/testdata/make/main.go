// The program makes the messages of testdata by the code that is generated from the definitions of
// Envoy: go run . (in this folder, a module of its own).
package main

import (
	"os"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	kind "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func peer(address string, port uint32) *auth.AttributeContext_Peer {
	return &auth.AttributeContext_Peer{Address: &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: address, PortSpecifier: &core.SocketAddress_PortValue{PortValue: port}}}}}
}

func set(name, value string) *core.HeaderValueOption {
	return &core.HeaderValueOption{Header: &core.HeaderValue{Key: name, Value: value}}
}

func appended(name, value string) *core.HeaderValueOption {
	o := set(name, value)
	o.Append = wrapperspb.Bool(true)
	return o
}

func acting(name, value string, action core.HeaderValueOption_HeaderAppendAction) *core.HeaderValueOption {
	o := set(name, value)
	o.AppendAction = action
	return o
}

func main() {
	http := &auth.AttributeContext_HttpRequest{Id: "id-1", Method: "POST", Path: "/a?b=c", Host: "shop.example", Scheme: "https", Size: 4, Protocol: "HTTP/1.1", Body: "body",
		Headers: map[string]string{":authority": "shop.example", ":method": "POST", ":path": "/a?b=c", ":scheme": "https", "accept": "a, b", "cookie": "c=1; d=2", "x-bytes": "\uFFFD", "x-empty": ""}}
	request := &auth.CheckRequest{Attributes: &auth.AttributeContext{Source: peer("192.0.2.1", 4711), Destination: peer("2001:db8::1", 443),
		Request: &auth.AttributeContext_Request{Time: timestamppb.New(time.Unix(1700000000, 5)), Http: http}}}
	write("request.bin", request)
	http.Body, http.RawBody, http.Size = "", []byte("\xff\x00"), -1
	write("request-binary.bin", request)

	write("ok.bin", &auth.CheckResponse{Status: &status.Status{}, HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: &auth.OkHttpResponse{
		Headers: []*core.HeaderValueOption{set("x-user", "ada"), appended("x-group", "a"),
			acting("x-absent", "b", core.HeaderValueOption_ADD_IF_ABSENT), acting("x-over", "c", core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD), acting("x-if", "d", core.HeaderValueOption_OVERWRITE_IF_EXISTS)},
		HeadersToRemove:      []string{"authorization", "x-secret"},
		ResponseHeadersToAdd: []*core.HeaderValueOption{set("set-cookie", "s=1")}}}})
	write("plain-ok.bin", &auth.CheckResponse{Status: &status.Status{}})
	write("query.bin", &auth.CheckResponse{HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: &auth.OkHttpResponse{QueryParametersToRemove: []string{"a"}}}})
	write("denied.bin", &auth.CheckResponse{Status: &status.Status{Code: 7, Message: "no"}, HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: &auth.DeniedHttpResponse{
		Status: &kind.HttpStatus{Code: kind.StatusCode_Unauthorized}, Headers: []*core.HeaderValueOption{set("www-authenticate", "Basic")}, Body: "sign in"}}})
	write("plain-denied.bin", &auth.CheckResponse{Status: &status.Status{Code: 16}})
	write("denied-ok.bin", &auth.CheckResponse{Status: &status.Status{}, HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: &auth.DeniedHttpResponse{}}})
	write("empty.bin", &auth.CheckResponse{})
}

func write(name string, m proto.Message) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err == nil {
		err = os.WriteFile("../"+name, b, 0o644)
	}
	if err != nil {
		panic(err)
	}
}
