// A real OpenID provider on loopback for the tests. Arguments: the address of the library's module.
// It prints its issuer when it serves. Every user name may log in; the password is not looked at. Users are in the group
// `staff`. Access tokens are JSON Web Tokens for the audience `dejaq`, which live for ACCESS_SECONDS (default 60).
import { createServer } from 'node:http';

const { Provider } = await import(process.argv[2]);
const resource = 'urn:dejaq';
const lifetime = Number(process.env.ACCESS_SECONDS ?? 60);

const server = createServer();
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const issuer = `http://127.0.0.1:${server.address().port}`;

const common = { application_type: 'native', redirect_uris: ['http://127.0.0.1/login/callback'] };
const provider = new Provider(issuer, {
  clients: [
    {
      ...common,
      client_id: 'dejaq',
      token_endpoint_auth_method: 'none',
      grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
    },
    {
      ...common,
      client_id: 'dejaq-web',
      client_secret: 'a secret of the tests',
      token_endpoint_auth_method: 'client_secret_post',
      grant_types: ['authorization_code', 'refresh_token'],
    },
  ],
  claims: { openid: ['sub'], profile: ['preferred_username', 'groups'] },
  conformIdTokenClaims: false,
  extraTokenClaims: (_, token) => ({ preferred_username: token.accountId, groups: ['staff'] }),
  features: {
    deviceFlow: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => resource,
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({
        scope: 'openid',
        audience: 'dejaq',
        accessTokenTTL: lifetime,
        accessTokenFormat: 'jwt',
      }),
    },
  },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, preferred_username: id, groups: ['staff'] }),
  }),
});

server.on('request', provider.callback());
console.log(issuer);
// The provider ends with the test that started it.
process.stdin.on('end', () => process.exit(0)).resume();
