package annotation

// passthroughs is the family of TLS that is not decrypted.
var passthroughs = map[string]judge{"ssl-passthrough": setting(sslPassthrough)}

const passDiffers = "ingress-nginx does this only with --enable-ssl-passthrough. weir keeps lists of clients (whitelist-source-range), which ingress-nginx ignores here"

func sslPassthrough(value string, _ context, s *Settings) (Rating, string) {
	if s.Passthrough = isTrue(value); s.Passthrough {
		return Near, passDiffers
	}
	return Exact, ""
}
